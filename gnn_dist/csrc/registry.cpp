// Schemas shared by all operator files, and the choice of the instruction set.
#include <atomic>

#include "dispatch.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

InstructionSet best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return InstructionSet::avx2;
  }
#endif
  return InstructionSet::baseline;
}

std::atomic<InstructionSet>& chosen() {
  static std::atomic<InstructionSet> set{best()};
  return set;
}

constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};

}  // namespace

InstructionSet instruction_set() { return chosen().load(std::memory_order_relaxed); }

std::string instruction_set_name() { return kNames[static_cast<int>(instruction_set())]; }

// For tests, which compare the sets that one machine has.
void set_instruction_set(std::string name) {
  for (int i = 0; i <= static_cast<int>(best()); ++i) {
    if (name == kNames[i]) {
      chosen() = static_cast<InstructionSet>(i);
      return;
    }
  }
  check(false, "this CPU has no instruction set ", name);
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY(gnn_dist, m) {
  m.def("instruction_set() -> str");
  m.def("set_instruction_set(str name) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&gnn_dist::instruction_set_name));
  m.impl("set_instruction_set", TORCH_BOX(&gnn_dist::set_instruction_set));
}
