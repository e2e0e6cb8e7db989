// Converts exceptions to statuses. Every library built from this shim has its own copy.

#include "status.hpp"

#include <cstdlib>
#include <cstring>

#include <torch/csrc/distributed/c10d/exception.h>

using namespace shim;

namespace {

Status failure(Kind kind, const char* what) noexcept {
  const size_t size = std::strlen(what) + 1;
  char* copy = static_cast<char*>(std::malloc(size));
  if (copy != nullptr) std::memcpy(copy, what, size);
  return {kind, copy};
}

} // namespace

// The order matters: each class precedes its base classes.
Status shim::current_exception() noexcept {
  try {
    throw;
  } catch (const c10d::TimeoutError& e) {
    return failure(Kind::Timeout, e.what_without_backtrace());
  } catch (const c10::DistNetworkError& e) {
    return failure(Kind::Network, e.what_without_backtrace());
  } catch (const c10::DistStoreError& e) {
    return failure(Kind::Store, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    return failure(Kind::Argument, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    return failure(Kind::Argument, e.what_without_backtrace());
  } catch (const c10::IndexError& e) {
    return failure(Kind::Argument, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return failure(Kind::Argument, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return failure(Kind::Other, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return failure(Kind::Other, e.what());
  } catch (...) {
    return failure(Kind::Other, "an exception that is not a std::exception");
  }
}
