// Hot loops are compiled once per instruction set; the best one for this CPU is chosen at run time.
//
// hot/NAME.cpp defines a table of function pointers, GNN_DIST_TABLE(Table, NAME); NAME.cpp asks for
// it with GNN_DIST_KERNELS(NAME).
#pragma once

#define GNN_DIST_JOIN_(a, b) a##_##b
#define GNN_DIST_JOIN(a, b) GNN_DIST_JOIN_(a, b)

#if defined(__x86_64__)
#define GNN_DIST_DECLARE_TABLES(Table, name) \
  extern const Table name##_baseline;        \
  extern const Table name##_avx2;            \
  extern const Table name##_avx512;
#define GNN_DIST_KERNELS(name)                                                            \
  (gnn_dist::instruction_set() == gnn_dist::InstructionSet::avx512  ? name##_avx512     \
   : gnn_dist::instruction_set() == gnn_dist::InstructionSet::avx2 ? name##_avx2        \
                                                                    : name##_baseline)
#else
#define GNN_DIST_DECLARE_TABLES(Table, name) extern const Table name##_baseline;
#define GNN_DIST_KERNELS(name) (name##_baseline)
#endif

// In hot/: the table of the instruction set that the file is being compiled for.
#define GNN_DIST_TABLE(Table, name) extern const Table GNN_DIST_JOIN(name, GNN_DIST_ISA)

namespace gnn_dist {

enum class InstructionSet { baseline, avx2, avx512 };

// The best set that this CPU has, or the one that was asked for by `set_instruction_set`.
InstructionSet instruction_set();

}  // namespace gnn_dist
