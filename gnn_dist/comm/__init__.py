"""Ranks talking to each other: worlds, transports and the control channel.

Arrows point down:

    world             what is passed around: rank, device, transport, control
      `-- joining     from a launch to a world
            |-- rendezvous      how ranks find each other
            |     `-- detect    which launcher started this process (pure)
            `-- torch_transport, mpi_transport, local_transport
    virtual           worlds whose ranks are threads; its transport stands beside those three
                  `-- base      checks, splitting and what needs no library
                        |-- messages, transport    plain data; the protocols
                        `-- control                who failed, who is late
                              `-- control_server   its hub, beside rank 0
"""
