// The backend that a group calls in front of Gloo. It lets one thread at a time start an operation, and where all ranks asked for it,
// has them compare their calls first: each collective begins with one line of text from every rank, and each message ends with one.

#include "shim.hpp"

#include <condition_variable>
#include <deque>
#include <thread>

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

using namespace shim;

namespace {

using c10d::OpType;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

// ---- lines: a hash of the whole text, and as much of the text as has room

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

std::string shape(const at::Tensor& tensor) { return c10::str(tensor.sizes(), " ", c10::toString(tensor.scalar_type())); }

// The names of src/collectives.rs.
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

// A collective that starts when the ranks have found that they call the same.
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
    std::unique_lock<std::mutex> lock(mutex_);
    const auto known = [&] { return completed_ || inner_; };
    if (timeout == kNoTimeout)
      cv_.wait(lock, known);
    else
      TORCH_CHECK(cv_.wait_for(lock, timeout, known), "Operation timed out!");
    if (exception_) std::rethrow_exception(exception_);
    lock.unlock();
    return inner_->wait(timeout);
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  Tensors result() override { return inner_->result(); }

 private:
  // Not all of Gloo's operations have a future; one is asked for by the reducer alone, of an all-reduce.
  void chain_future(Work& inner) {
    try {
      inner.getFuture()->addCallback([future = future_](c10::ivalue::Future& done) {
        done.hasError() ? future->setError(done.exception_ptr()) : future->markCompleted(done.value());
      });
    } catch (...) {
      future_->setError(std::current_exception());
    }
  }

  c10::intrusive_ptr<c10::ivalue::Future> future_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  WorkPtr inner_; // written once, under the lock, by `started`
};

// What a rank is about to call.
struct Job {
  std::string line;
  // all_to_all only: how many rows this rank sends to each and expects from each.
  std::vector<int64_t> rows;
  Milliseconds timeout;
  at::ThreadLocalState caller;
  std::function<WorkPtr()> launch;
  c10::intrusive_ptr<Compared> work;
};

// ---- messages

// A message that ends with the sender's line, which tells whether it is the one that the receiver waits for.
class Received : public Work {
 public:
  Received(at::Tensor target, at::Tensor packed, int32_t rank, WorkPtr inner)
      : Work(-1, OpType::RECV), target_(std::move(target)), packed_(std::move(packed)), me_(rank), inner_(std::move(inner)) {}

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
  // A shorter message has its line further to the front: the last one whose hash fits its text.
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

// ---- the backend

class Guarded : public c10d::Backend {
 public:
  Guarded(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, bool compare)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), compare_(compare && size_ > 1) {
    if (compare_) worker_ = std::thread([this] { work(); });
  }

  // As Gloo's, waits for what is under way.
  ~Guarded() override {
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      stop_ = true;
    }
    queued_.notify_all();
    if (worker_.joinable()) worker_.join();
  }

  const std::string getBackendName() const override { return gloo_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void abort() override { gloo_->abort(); }
  void shutdown() override { gloo_->shutdown(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    return run(OpType::BROADCAST, o.timeout, [&] { return c10::str("broadcast from rank ", o.rootRank, " of ", shape(tensors.at(0))); },
               [this, tensors, o]() mutable { return gloo_->broadcast(tensors, o); });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    return run(OpType::ALLREDUCE, o.timeout, [&] { return c10::str("all_reduce(", name(o.reduceOp), ") of ", shape(tensors.at(0))); },
               [this, tensors, o]() mutable { return gloo_->allreduce(tensors, o); });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    return run(OpType::REDUCE, o.timeout,
               [&] { return c10::str("reduce(", name(o.reduceOp), ") to rank ", o.rootRank, " of ", shape(tensors.at(0))); },
               [this, tensors, o]() mutable { return gloo_->reduce(tensors, o); });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    return run(OpType::ALLGATHER, o.timeout, [&] { return c10::str("all_gather of ", shape(inputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return gloo_->allgather(outputs, inputs, o); });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& o) override {
    return run(OpType::_ALLGATHER_BASE, o.timeout, [&] { return c10::str("all_gather_into_tensor of ", shape(input)); },
               [this, output, input, o]() mutable { return gloo_->_allgather_base(output, input, o); });
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    return run(OpType::GATHER, o.timeout, [&] { return c10::str("gather to rank ", o.rootRank, " of ", shape(inputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return gloo_->gather(outputs, inputs, o); });
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    return run(OpType::SCATTER, o.timeout, [&] { return c10::str("scatter from rank ", o.rootRank, " of ", shape(outputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return gloo_->scatter(outputs, inputs, o); });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    return run(OpType::REDUCE_SCATTER, o.timeout,
               [&] { return c10::str("reduce_scatter(", name(o.reduceOp), ") of ", shape(outputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return gloo_->reduce_scatter(outputs, inputs, o); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    return run(OpType::_REDUCE_SCATTER_BASE, o.timeout,
               [&] { return c10::str("reduce_scatter_tensor(", name(o.reduceOp), ") of ", shape(input)); },
               [this, output, input, o]() mutable { return gloo_->_reduce_scatter_base(output, input, o); });
  }

  // Ranks may send different numbers of rows, so these are compared pair by pair.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receives, std::vector<int64_t>& sends,
                        const c10d::AllToAllOptions& o) override {
    std::vector<int64_t> rows;
    for (const auto& [splits, tensor] : {std::pair(&sends, &input), std::pair(&receives, &output)})
      for (int i = 0; i < size_; ++i) rows.push_back(splits->empty() ? tensor->size(0) / size_ : splits->at(i));
    return run(OpType::ALLTOALL_BASE, o.timeout,
               [&] { return c10::str("all_to_all_single of rows ", input.sizes().slice(1), " ", c10::toString(input.scalar_type())); },
               [this, output, input, receives, sends, o]() mutable { return gloo_->alltoall_base(output, input, receives, sends, o); },
               std::move(rows));
  }

  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return run(OpType::BARRIER, o.timeout, [] { return std::string("barrier"); }, [this, o] { return gloo_->barrier(o); });
  }

  // Compares nothing: its duty is to name those that do not come. What was called before it is started before it.
  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) override {
    drain();
    std::lock_guard<std::mutex> lock(launching_);
    gloo_->monitoredBarrier(o, wait_all_ranks);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    if (!compare_) return launched([&] { return gloo_->send(tensors, to, tag); });
    auto packed = packed_like(tensors.at(0));
    auto* bytes = packed.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, tensors[0].const_data_ptr(), tensors[0].nbytes());
    write_line(shape(tensors[0]), bytes + tensors[0].nbytes());
    Tensors list{std::move(packed)};
    return launched([&] { return gloo_->send(list, to, tag); });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return receive(tensors, [&](Tensors& list) { return gloo_->recv(list, from, tag); });
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return receive(tensors, [&](Tensors& list) { return gloo_->recvAnysource(list, tag); });
  }

 private:
  // Gloo counts its operations without a lock, and hooks of autograd may come here on any thread.
  template <class F>
  WorkPtr launched(F&& launch) {
    std::lock_guard<std::mutex> lock(launching_);
    return launch();
  }

  template <class F>
  WorkPtr receive(Tensors& tensors, F&& launch) {
    if (!compare_) return launched([&] { return launch(tensors); });
    Tensors list{packed_like(tensors.at(0))};
    auto inner = launched([&] { return launch(list); });
    return c10::make_intrusive<Received>(tensors[0], list[0], rank_, std::move(inner));
  }

  template <class Line, class Launch>
  WorkPtr run(OpType type, Milliseconds timeout, Line&& line, Launch&& launch, std::vector<int64_t> rows = {}) {
    if (!compare_) return launched(launch);
    auto work = c10::make_intrusive<Compared>(type);
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      queue_.push_back(Job{line(), std::move(rows), timeout, at::ThreadLocalState(), std::forward<Launch>(launch), work});
    }
    queued_.notify_one();
    return work;
  }

  // The one thread that compares: all ranks take up their calls in the order in which they were made.
  void work() {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    for (;;) {
      queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      {
        const Job job = std::move(queue_.front());
        lock.unlock();
        compare_and_start(job);
      }
      lock.lock();
      queue_.pop_front();
      started_.notify_all();
    }
  }

  void compare_and_start(const Job& job) noexcept {
    try {
      compare(job);
      at::ThreadLocalStateGuard as_caller(job.caller);
      job.work->started(launched(job.launch));
    } catch (...) {
      job.work->failed(std::current_exception());
    }
  }

  void drain() {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    started_.wait(lock, [&] { return queue_.empty(); });
  }

  void compare(const Job& job) {
    auto mine = at::empty({kLine}, at::kByte);
    write_line(job.line, mine.mutable_data_ptr<uint8_t>());
    const auto lines = from_all(mine, job.timeout);
    if (!lines.eq(mine).all().item<bool>()) throw_mismatch(lines);
    if (!job.rows.empty()) compare_rows(job);
  }

  // A row of the result for each rank.
  at::Tensor from_all(at::Tensor mine, Milliseconds timeout) {
    auto all = at::empty({size_, mine.size(0)}, mine.options());
    std::vector<Tensors> outputs{all.unbind()};
    Tensors inputs{std::move(mine)};
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    launched([&] { return gloo_->allgather(outputs, inputs, options); })->wait();
    return all;
  }

  // The ranks that call the same stand together.
  void throw_mismatch(const at::Tensor& lines) {
    std::vector<std::pair<std::string, std::string>> calls;
    for (int r = 0; r < size_; ++r) {
      auto line = read_line(lines[r].const_data_ptr<uint8_t>());
      auto same = std::find_if(calls.begin(), calls.end(), [&](const auto& call) { return call.first == line; });
      if (same == calls.end()) same = calls.insert(calls.end(), {line, ""});
      same->second += c10::str(same->second.empty() ? "" : ", ", r);
    }
    std::string text;
    for (const auto& [line, ranks] : calls)
      text += c10::str(text.empty() ? "" : "; ", "Rank", ranks.find(',') == std::string::npos ? " " : "s ", ranks, ": ", line);
    TORCH_CHECK(false, "Detected mismatch between collectives. ", text);
  }

  void compare_rows(const Job& job) {
    const auto all = from_all(at::tensor(job.rows, at::kLong), job.timeout);
    const auto rows = all.accessor<int64_t, 2>();
    for (int from = 0; from < size_; ++from)
      for (int to = 0; to < size_; ++to)
        TORCH_CHECK(rows[from][to] == rows[to][size_ + from], "Detected mismatch between collectives. ", job.line, ": Rank ", from,
                    " sends ", rows[from][to], " rows to Rank ", to, ", which expects ", rows[to][size_ + from]);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  const bool compare_;
  std::mutex launching_;
  std::mutex queue_mutex_;
  std::condition_variable queued_, started_;
  std::deque<Job> queue_; // the front is being compared
  bool stop_ = false;
  std::thread worker_;
};

} // namespace

extern "C" {

// Puts the guard in front of Gloo. `compare` must be the same on all ranks.
Status lc_backend_guard(BackendHandle* backend, bool compare) noexcept {
  return guard([&] {
    auto* gloo = dynamic_cast<c10d::ProcessGroupGloo*>(backend->backend.get());
    TORCH_CHECK(gloo != nullptr, "only Gloo is guarded");
    backend->wrapper = c10::make_intrusive<Guarded>(c10::intrusive_ptr<c10d::ProcessGroupGloo>::reclaim_copy(gloo), compare);
  });
}

} // extern "C"
