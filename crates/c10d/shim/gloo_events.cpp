// Errors in Gloo's event thread as errors of the connection.
//
// Gloo checks that a message fits the buffer that waits for it, and throws if not. It does so in the thread that serves its sockets,
// which catches I/O errors only: the process ends by SIGABRT. The function here takes the place of the one that the thread calls (a
// symbol of the program goes before the same symbol of a shared library), calls it, and hands whatever it throws to the connection:
// the operations that wait there fail with the exception's words, and the peer sees a closed connection.
//
// Where libtorch has no such symbol, the place is not taken and nothing changes.

#include <dlfcn.h>

#include <exception>
#include <string>

// gloo::transport::tcp::Pair::handleEvents(Loop&, int), entered through its second base class Handler, which lies this far into it.
#define HANDLE_EVENTS "_ZThn16_N4gloo9transport3tcp4Pair12handleEventsERNS1_4LoopEi"
#define SIGNAL_EXCEPTION \
  "_ZN4gloo9transport3tcp4Pair23signalExceptionExternalERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

namespace {

constexpr std::ptrdiff_t kHandlerInPair = 16;

// The library's own function of that name.
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
