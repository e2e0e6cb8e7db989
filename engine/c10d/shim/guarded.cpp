// Wraps Gloo or shared memory as a group's backend. It lets only one thread at a time start an operation, and counts
// operations and their bytes. If all ranks request it, the ranks compare their calls: each collective begins with one line
// of text from every rank, and each message ends with one (comparison.hpp).

#include "comparison.hpp"
#include "gloo_connections.hpp"
#include "shim.hpp"
#include "shm/segment.hpp"

#include <deque>
#include <thread>

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

using namespace shim;

namespace {

// A call that a rank is about to make.
struct Job {
  std::string line;
  // all_to_all only: the number of rows that this rank sends to each rank and expects from each.
  std::vector<int64_t> rows;
  Milliseconds timeout;
  at::ThreadLocalState caller;
  std::function<WorkPtr()> launch;
  c10::intrusive_ptr<Compared> work;
};

class Guarded : public c10d::Backend {
 public:
  Guarded(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Traffic> traffic, bool compare)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        traffic_(std::move(traffic)),
        compare_(compare && size_ > 1) {
    if (compare_) worker_ = std::thread([this] { work(); });
  }

  // Like Gloo's destructor, waits for operations in progress.
  ~Guarded() override {
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      stop_ = true;
    }
    queued_.notify_all();
    if (worker_.joinable()) worker_.join();
  }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void setTimeout(Milliseconds timeout) override { inner_->setTimeout(timeout); }
  void shutdown() override { inner_->shutdown(); }

  // May be called by any thread. Gloo cannot abort.
  void abort() override {
    if (inner_->getBackendName() != "gloo") return inner_->abort();
    // A monitored barrier holds the lock while it waits.
    const std::unique_lock<std::mutex> lock(launching_, std::try_to_lock);
    close_connections(*inner_);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    count(tensors);
    return run(OpType::BROADCAST, o.timeout,
               [&] { return c10::str("broadcast from rank ", o.rootRank, " of ", shape(tensors.at(0))); },
               [this, tensors, o]() mutable { return inner_->broadcast(tensors, o); });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    count(tensors);
    return run(OpType::ALLREDUCE, o.timeout,
               [&] { return c10::str("all_reduce(", name(o.reduceOp), ") of ", shape(tensors.at(0))); },
               [this, tensors, o]() mutable { return inner_->allreduce(tensors, o); });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    count(tensors);
    return run(OpType::REDUCE, o.timeout,
               [&] { return c10::str("reduce(", name(o.reduceOp), ") to rank ", o.rootRank, " of ", shape(tensors.at(0))); },
               [this, tensors, o]() mutable { return inner_->reduce(tensors, o); });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    count(inputs);
    return run(OpType::ALLGATHER, o.timeout,
               [&] { return c10::str("all_gather of ", shape(inputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return inner_->allgather(outputs, inputs, o); });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& o) override {
    traffic_->add(input.nbytes());
    return run(OpType::_ALLGATHER_BASE, o.timeout,
               [&] { return c10::str("all_gather_into_tensor of ", shape(input)); },
               [this, output, input, o]() mutable { return inner_->_allgather_base(output, input, o); });
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    count(inputs);
    return run(OpType::GATHER, o.timeout,
               [&] { return c10::str("gather to rank ", o.rootRank, " of ", shape(inputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return inner_->gather(outputs, inputs, o); });
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    count(inputs);
    return run(OpType::SCATTER, o.timeout,
               [&] { return c10::str("scatter from rank ", o.rootRank, " of ", shape(outputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return inner_->scatter(outputs, inputs, o); });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    count(inputs);
    return run(OpType::REDUCE_SCATTER, o.timeout,
               [&] { return c10::str("reduce_scatter(", name(o.reduceOp), ") of ", shape(outputs.at(0))); },
               [this, outputs, inputs, o]() mutable { return inner_->reduce_scatter(outputs, inputs, o); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    traffic_->add(input.nbytes());
    return run(OpType::_REDUCE_SCATTER_BASE, o.timeout,
               [&] { return c10::str("reduce_scatter_tensor(", name(o.reduceOp), ") of ", shape(input)); },
               [this, output, input, o]() mutable { return inner_->_reduce_scatter_base(output, input, o); });
  }

  // Ranks may send different numbers of rows, so these are compared in pairs.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receives, std::vector<int64_t>& sends,
                        const c10d::AllToAllOptions& o) override {
    traffic_->add(input.nbytes());
    std::vector<int64_t> rows;
    for (const auto& [splits, tensor] : {std::pair(&sends, &input), std::pair(&receives, &output)})
      for (int i = 0; i < size_; ++i) rows.push_back(splits->empty() ? tensor->size(0) / size_ : splits->at(i));
    return run(OpType::ALLTOALL_BASE, o.timeout,
               [&] { return c10::str("all_to_all_single of rows ", input.sizes().slice(1), " ",
                                        c10::toString(input.scalar_type())); },
               [this, output, input, receives, sends, o]() mutable {
                 return inner_->alltoall_base(output, input, receives, sends, o);
               },
               std::move(rows));
  }

  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    traffic_->add(0);
    return run(OpType::BARRIER, o.timeout, [] { return std::string("barrier"); }, [this, o] { return inner_->barrier(o); });
  }

  // Compares nothing: it already names the missing ranks. Earlier calls are started first.
  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) override {
    traffic_->add(0);
    drain(o.timeout);
    std::lock_guard<std::mutex> lock(launching_);
    inner_->monitoredBarrier(o, wait_all_ranks);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    count(tensors);
    if (!compare_) return launched([&] { return inner_->send(tensors, to, tag); });
    auto packed = packed_like(tensors.at(0));
    auto* bytes = packed.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, tensors[0].const_data_ptr(), tensors[0].nbytes());
    write_line(shape(tensors[0]), bytes + tensors[0].nbytes());
    Tensors list{std::move(packed)};
    return launched([&] { return inner_->send(list, to, tag); });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return receive(tensors, [&](Tensors& list) { return inner_->recv(list, from, tag); });
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return receive(tensors, [&](Tensors& list) { return inner_->recvAnysource(list, tag); });
  }

 private:
  static size_t bytes(const Tensors& tensors) {
    size_t sum = 0;
    for (const auto& tensor : tensors) sum += bytes_of(tensor);
    return sum;
  }

  // For an operation that takes lists of tensors, of which there are none unless this rank is the root.
  static size_t bytes(const std::vector<Tensors>& lists) {
    size_t sum = 0;
    for (const auto& list : lists) sum += bytes(list);
    return sum;
  }

  template <class Passed>
  void count(const Passed& passed) {
    traffic_->add(bytes(passed));
  }

  // The backend counts its operations without a lock, and autograd hooks may call this on any thread.
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
      queue_.push_back(
          Job{line(), std::move(rows), timeout, at::ThreadLocalState(), std::forward<Launch>(launch), work});
    }
    queued_.notify_one();
    return work;
  }

  // The only thread that compares: all ranks process their calls in the order in which they were made.
  void work() {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    for (;;) {
      queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      {
        const Job job = std::move(queue_.front());
        queue_.front().line = job.line; // for `drain`
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

  void drain(Milliseconds timeout) {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    const auto empty = [&] { return queue_.empty(); };
    if (timeout == c10d::kUnsetTimeout)
      started_.wait(lock, empty);
    else
      TORCH_CHECK(started_.wait_for(lock, timeout, empty), "Operation timed out! Calls before this one are not started: \"",
                  queue_.front().line, "\" waits for other ranks");
  }

  void compare(const Job& job) {
    auto mine = at::empty({kLine}, at::kByte);
    write_line(job.line, mine.mutable_data_ptr<uint8_t>());
    const auto lines = from_all(mine, job.timeout);
    if (!lines.eq(mine).all().item<bool>()) throw_mismatch(lines);
    if (!job.rows.empty()) compare_rows(job);
  }

  // One row of the result per rank.
  at::Tensor from_all(at::Tensor mine, Milliseconds timeout) {
    auto all = at::empty({size_, mine.size(0)}, mine.options());
    std::vector<Tensors> outputs{all.unbind()};
    Tensors inputs{std::move(mine)};
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    launched([&] { return inner_->allgather(outputs, inputs, options); })->wait();
    return all;
  }

  void throw_mismatch(const at::Tensor& lines) {
    std::vector<std::pair<int, std::string>> calls;
    for (int r = 0; r < size_; ++r) calls.emplace_back(r, read_line(lines[r].const_data_ptr<uint8_t>()));
    TORCH_CHECK(false, "Detected mismatch between collectives. ", shm::group_ranks(calls));
  }

  void compare_rows(const Job& job) {
    const auto all = from_all(at::tensor(job.rows, at::kLong), job.timeout);
    const auto rows = all.accessor<int64_t, 2>();
    for (int from = 0; from < size_; ++from)
      for (int to = 0; to < size_; ++to)
        TORCH_CHECK(rows[from][to] == rows[to][size_ + from], "Detected mismatch between collectives. ", job.line, ": Rank ",
                    from, " sends ", rows[from][to], " rows to Rank ", to, ", which expects ", rows[to][size_ + from]);
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Traffic> traffic_;
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

// Wraps the backend in the guard. `compare` must be the same on all ranks.
Status lc_backend_guard(BackendHandle* backend, bool compare) noexcept {
  return guard([&] {
    backend->traffic = std::make_shared<Traffic>();
    backend->guarded = c10::make_intrusive<Guarded>(backend->backend, backend->traffic, compare);
    backend->wrapper = backend->guarded;
  });
}

} // extern "C"
