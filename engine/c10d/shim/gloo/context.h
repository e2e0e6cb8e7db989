// See algorithm.h. ProcessGroupGloo.hpp calls setTimeout in an inline function.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>
namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
