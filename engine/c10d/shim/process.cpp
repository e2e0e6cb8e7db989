// Settings for the whole process, made before `main` while there is one thread: libtorch's logs, c10d's flight recorder and
// MKL's processor. Values that the user has set are kept. Later, a write to the environment would race with readers on other
// threads.

#include "status.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <exception>
#include <string>

#include <ATen/ops/ones.h>
#include <c10/macros/Export.h>
#include <c10/util/Flags.h>

C10_DECLARE_int(caffe2_log_level);

namespace c10d {
// FlightRecorder.hpp declares it next to constants that have constructors.
TORCH_API std::string dump_fr_trace_json(bool includeCollectives, bool onlyActive);
} // namespace c10d

namespace {

constexpr const char* kEntries = "TORCH_FR_BUFFER_SIZE";

// libtorch prints a warning and a C++ stack for each exception that it throws; the errors of src/error.rs contain the
// same text. Levels are glog's: 3 is FATAL.
void quiet_logs() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
}

// The recorder is a single object per process. It writes its table of groups without a lock when a group issues its
// first call, so groups on several threads crash in it. It reads its size once, on first use.
void no_flight_recorder() {
  if (std::getenv(kEntries) != nullptr || std::getenv("TORCH_NCCL_TRACE_BUFFER_SIZE") != nullptr) return;
  ::setenv(kEntries, "0", 1);
  (void)shim::guard([] { (void)c10d::dump_fr_trace_json(false, false); });
#ifndef WITH_NCCL
  // Child processes get their own recorder. NCCL's is created later and reads the variable then.
  ::unsetenv(kEntries);
#endif
}

// MKL detects the processor in the first call of one of its vector functions. A thread that calls one meanwhile gets the
// function for another processor, whose last bits differ. Ranks that are threads did, in 1 of 40 runs.
void find_processor() {
  (void)shim::guard([] { (void)at::ones({1}).tanh(); });
}

__attribute__((constructor)) void prepare_process() {
  quiet_logs();
  no_flight_recorder();
  find_processor();
}

} // namespace

// Turns errors in Gloo's event thread into errors of the connection.
//
// Gloo checks that a message fits the waiting buffer, and throws if it does not. It does so in the thread that serves
// its sockets, which only catches I/O errors: the process would end with SIGABRT. The function here replaces the one
// that the thread calls (a symbol of the program takes precedence over the same symbol of a shared library). It calls
// the original and passes every exception to the connection: the operations that wait there fail with the exception's
// message, and the peer sees a closed connection.
//
// If libtorch has no such symbol, nothing is replaced and nothing changes.

// gloo::transport::tcp::Pair::handleEvents(Loop&, int), called through its second base class Handler, which is at this
// offset.
#define HANDLE_EVENTS "_ZThn16_N4gloo9transport3tcp4Pair12handleEventsERNS1_4LoopEi"
#define SIGNAL_EXCEPTION \
  "_ZN4gloo9transport3tcp4Pair23signalExceptionExternalERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

namespace {

constexpr std::ptrdiff_t kHandlerInPair = 16;

// The library's own function of this name.
template <class F>
F* original(const char* symbol) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, symbol));
}

} // namespace

extern "C" __attribute__((visibility("default"), used)) void lockstep_gloo_events(void* handler, void* loop, int events)
    __asm__(HANDLE_EVENTS);

extern "C" void lockstep_gloo_events(void* handler, void* loop, int events) {
  static auto* const handle = original<void(void*, void*, int)>(HANDLE_EVENTS);
  static auto* const signal = original<std::exception_ptr(void*, const std::string&)>(SIGNAL_EXCEPTION);
  try {
    handle(handler, loop, events);
  } catch (const std::exception& e) {
    if (signal == nullptr) throw;
    (void)signal(static_cast<char*>(handler) - kHandlerInPair, e.what());
  }
}
