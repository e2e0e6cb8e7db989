// The comparison of calls: lines of text that describe each rank's call, and the operations that wait for these lines.
//
// Not here: when the lines are exchanged (guarded.cpp, the only file that includes this one).

#pragma once

#include "shim.hpp"

#include <condition_variable>

using namespace shim;

namespace {

using c10d::OpType;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

// ---- lines: a hash of the whole text, and as much of the text as fits

constexpr int64_t kLine = 256;

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

void write_line(const std::string& text, uint8_t* out) {
  const uint64_t hash = fnv1a(text);
  std::memset(out, 0, kLine);
  std::memcpy(out, &hash, sizeof hash);
  std::memcpy(out + sizeof hash, text.data(), std::min<size_t>(text.size(), kLine - sizeof hash));
}

std::string read_line(const uint8_t* line) {
  const char* text = reinterpret_cast<const char*>(line + sizeof(uint64_t));
  return std::string(text, strnlen(text, kLine - sizeof(uint64_t)));
}

std::string shape(const at::Tensor& tensor) {
  return c10::str(tensor.sizes(), " ", c10::toString(tensor.scalar_type()), tensor.is_sparse() ? " sparse" : "");
}

// The names in src/collectives.rs.
const char* name(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return "Sum";
    case c10d::ReduceOp::AVG: return "Avg";
    case c10d::ReduceOp::PRODUCT: return "Product";
    case c10d::ReduceOp::MIN: return "Min";
    case c10d::ReduceOp::MAX: return "Max";
    default: return "another reduction";
  }
}

// ---- collectives

// A collective that starts after the ranks have found that their calls match.
class Compared : public Work {
 public:
  explicit Compared(OpType type) : Work(-1, type) {}

  void started(WorkPtr inner) {
    chain_future(*inner);
    std::lock_guard<std::mutex> lock(mutex_);
    inner_ = std::move(inner);
    cv_.notify_all();
  }

  void failed(std::exception_ptr exception) {
    future_->setError(exception);
    finish(exception);
  }

  bool isCompleted() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!inner_) return completed_;
    lock.unlock();
    return inner_->isCompleted();
  }

  bool wait(Milliseconds timeout) override {
    const auto begun = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    const auto known = [&] { return completed_ || inner_; };
    if (timeout == kNoTimeout)
      cv_.wait(lock, known);
    else
      TORCH_CHECK(cv_.wait_for(lock, timeout, known), "Operation timed out!");
    if (exception_) std::rethrow_exception(exception_);
    lock.unlock();
    if (timeout != kNoTimeout) timeout = std::max(Milliseconds(1), timeout - elapsed_since(begun));
    return inner_->wait(timeout);
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  Tensors result() override { return inner_->result(); }

 private:
  static Milliseconds elapsed_since(std::chrono::steady_clock::time_point begun) {
    return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begun);
  }

  // Not all of Gloo's operations have a future. Only the reducer needs one, for an all-reduce.
  void chain_future(Work& inner) {
    try {
      inner.getFuture()->addCallback([future = future_](c10::ivalue::Future& done) {
        done.hasError() ? future->setError(done.exception_ptr()) : future->markCompleted(done.value());
      });
    } catch (...) {
      future_->setError(std::current_exception());
    }
  }

  c10::intrusive_ptr<c10::ivalue::Future> future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  WorkPtr inner_; // written once, under the lock, by `started`
};

// ---- messages

// A message that ends with the sender's line, which the receiver compares with its own.
class Received : public Work {
 public:
  Received(at::Tensor target, at::Tensor packed, int32_t rank, WorkPtr inner)
      : Work(-1, OpType::RECV),
        target_(std::move(target)),
        packed_(std::move(packed)),
        me_(rank),
        inner_(std::move(inner)) {}

  bool wait(Milliseconds timeout) override {
    const bool finished = inner_->wait(timeout);
    const auto* bytes = packed_.const_data_ptr<uint8_t>();
    const int64_t length = packed_.numel() - kLine;
    std::vector<uint8_t> mine(kLine);
    write_line(shape(target_), mine.data());
    TORCH_CHECK(std::memcmp(bytes + length, mine.data(), kLine) == 0, "Detected mismatch between messages: rank ",
                inner_->sourceRank(), " sent ", sent(bytes, length), " where rank ", me_, " receives ", shape(target_));
    std::memcpy(target_.mutable_data_ptr(), bytes, length);
    return finished;
  }

  int sourceRank() const override { return inner_->sourceRank(); }
  void abort() override { inner_->abort(); }

 private:
  // In a shorter message the line is nearer to the front: it is the last one whose hash matches its text.
  static std::string sent(const uint8_t* bytes, int64_t length) {
    for (int64_t at = length; at >= 0; --at) {
      uint64_t hash;
      std::memcpy(&hash, bytes + at, sizeof hash);
      const auto text = read_line(bytes + at);
      if (!text.empty() && hash == fnv1a(text)) return text;
    }
    return "another length";
  }

  at::Tensor target_, packed_;
  const int32_t me_;
  WorkPtr inner_;
};

at::Tensor packed_like(const at::Tensor& tensor) {
  return at::zeros({static_cast<int64_t>(tensor.nbytes()) + kLine}, at::kByte);
}

} // namespace
