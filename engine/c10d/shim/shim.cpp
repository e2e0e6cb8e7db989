// The shim as one translation unit: libtorch's headers take much longer to compile than the code here.
#include "status.cpp"

#include "shm/backend.cpp"

#include "autograd.cpp"
#include "group.cpp"
#include "guarded.cpp"
#include "hooks.cpp"
#include "kernels.cpp"
#include "process.cpp"
#include "reducer.cpp"
#include "store.cpp"

#include "two_levels.cpp" // after group.cpp, whose Gloo options it uses
