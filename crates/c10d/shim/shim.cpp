// The shim as one translation unit: libtorch's headers take much longer to compile than the code here.
#include "status.cpp"

#include "shm/backend.cpp"

#include "autograd.cpp"
#include "facts.cpp"
#include "gloo_events.cpp"
#include "group.cpp"
#include "guarded.cpp"
#include "hooks.cpp"
#include "kernels.cpp"
#include "optim.cpp"
#include "process.cpp"
#include "reducer.cpp"
#include "store.cpp"
#include "sync_batch_norm.cpp"
#include "two_levels.cpp"

#include "amp.cpp"    // after optim.cpp, whose checks it calls
#include "memory.cpp" // after group.cpp, whose Gloo options it takes, and two_levels.cpp
