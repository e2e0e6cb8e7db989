// Turns errors in Gloo's event thread into errors of the connection.
//
// Gloo checks that a message fits the waiting buffer, and throws if it does not. It does so in the thread that serves
// its sockets, which only catches I/O errors: the process would end with SIGABRT. The function here replaces the one
// that the thread calls (a symbol of the program takes precedence over the same symbol of a shared library). It calls
// the original and passes every exception to the connection: the operations that wait there fail with the exception's
// message, and the peer sees a closed connection.
//
// If libtorch has no such symbol, nothing is replaced and nothing changes.

#include <dlfcn.h>

#include <exception>
#include <string>

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
