// What is set for the whole process before `main`, when it has one thread: libtorch's logs and c10d's flight recorder. Whoever sets
// their variables keeps their values. Later, a write of the environment would race with its readers on other threads.

#include "status.hpp"

#include <cstdlib>
#include <string>

#include <c10/macros/Export.h>
#include <c10/util/Flags.h>

C10_DECLARE_int(caffe2_log_level);

namespace c10d {
// FlightRecorder.hpp declares it beside constants with constructors of their own.
TORCH_API std::string dump_fr_trace_json(bool includeCollectives, bool onlyActive);
} // namespace c10d

namespace {

constexpr const char* kEntries = "TORCH_FR_BUFFER_SIZE";

// libtorch prints a warning and a C++ stack next to each exception that it throws; the errors of src/error.rs carry the same words.
// Levels are glog's: 3 is FATAL.
void quiet_logs() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
}

// The recorder is one object a process, and its table of groups is written without a lock when a group issues its first call:
// groups on several threads crash in it. It reads its size once, when it is first asked for something.
void no_flight_recorder() {
  if (std::getenv(kEntries) != nullptr || std::getenv("TORCH_NCCL_TRACE_BUFFER_SIZE") != nullptr) return;
  ::setenv(kEntries, "0", 1);
  (void)shim::guard([] { (void)c10d::dump_fr_trace_json(false, false); });
#ifndef WITH_NCCL
  // Programs that this one starts have a recorder of their own. That of NCCL is made later and reads the variable then.
  ::unsetenv(kEntries);
#endif
}

__attribute__((constructor)) void prepare_process() {
  quiet_logs();
  no_flight_recorder();
}

} // namespace
