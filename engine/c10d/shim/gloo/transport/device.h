// See ../algorithm.h: only shared pointers to these types are used.
#pragma once
#include <memory>
namespace gloo::transport {
class Device;
class UnboundBuffer;
} // namespace gloo::transport
