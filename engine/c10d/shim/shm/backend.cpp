// Shared memory as a c10d backend: maps the group's calls to collectives and messages of shm::, and their ends to c10d's work
// handles. Also the memory of gradient buckets.

#include "../shim.hpp"

#include "executor.hpp"
#include "meeting.hpp"
#include "messages.hpp"
#include "sparse_sum.hpp"

#include <atomic>
#include <limits>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

using namespace shim;

namespace {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Future = c10::ivalue::Future;
using Tensors = std::vector<at::Tensor>;

// Set while this thread makes a call and waits for its end at once.
thread_local bool caller_waits = false;

// Sets it for a block.
struct CallerWaits {
  CallerWaits() { caller_waits = true; }
  ~CallerWaits() { caller_waits = before; }
  const bool before = caller_waits;
};

// ---- work handles

class CollectiveWork : public c10d::Work {
 public:
  CollectiveWork(OpType type, Tensors tensors) : Work(-1, type), tensors_(std::move(tensors)) {}

  void end(std::exception_ptr failure) {
    c10::intrusive_ptr<Future> future;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      failure_ = failure;
      future = future_;
    }
    if (future) mark(*future);
    finish(failure);
  }

  c10::intrusive_ptr<Future> getFuture() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    const bool ended = ended_;
    lock.unlock();
    if (ended) mark(*future_);
    return future_;
  }

  Tensors result() override { return tensors_; }

 private:
  void mark(Future& future) { failure_ ? future.setError(failure_) : future.markCompleted(c10::IValue(tensors_)); }

  const Tensors tensors_;
  c10::intrusive_ptr<Future> future_; // created on demand
  bool ended_ = false;
  std::exception_ptr failure_;
};

// The state of messages, which may outlive the backend.
struct Post {
  std::unique_ptr<shm::Members> members;
  shm::Messages messages;
  std::atomic<std::chrono::milliseconds> timeout; // of calls without their own timeout

  Post(std::unique_ptr<shm::Members> all, bool compares, std::chrono::milliseconds timeout)
      : members(std::move(all)), messages(*members, compares), timeout(timeout) {}
};

// A backend for ranks that share memory: all of the group, or those of each host.
struct WithMemory {
  virtual ~WithMemory() = default;
  virtual const std::shared_ptr<Post>& post() const = 0;
  const std::shared_ptr<shm::Arena>& arena() const { return post()->members->arena(); }
};

class MessageWork : public c10d::Work {
 public:
  MessageWork(OpType type, std::shared_ptr<Post> post, shm::Messages::TransferPtr transfer)
      : Work(-1, type), post_(std::move(post)), transfer_(std::move(transfer)) {}
  ~MessageWork() override { post_->messages.cancel(transfer_); }

  bool isCompleted() override { return post_->messages.has_ended(transfer_); }

  // As with Gloo, a message that is late ends the rank's part in the group.
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      post_->messages.wait(transfer_, shm::Deadline::in(timeout == kNoTimeout ? post_->timeout.load() : timeout));
    } catch (const shm::Mismatch&) {
      throw;
    } catch (const shm::Failure& failure) {
      post_->members->fail(failure.culprit);
      throw;
    }
    return true;
  }

  int sourceRank() const override { return transfer_->peer; }
  void abort() override { post_->messages.cancel(transfer_); }

 private:
  const std::shared_ptr<Post> post_;
  const shm::Messages::TransferPtr transfer_;
};

// ---- calls

shm::Call call_of(OpType op, const at::Tensor& tensor, at::IntArrayRef sizes, size_t bytes) {
  shm::Call call;
  call.op = static_cast<uint8_t>(op);
  call.type = static_cast<uint8_t>(tensor.scalar_type());
  call.dims = static_cast<uint8_t>(std::min<size_t>(sizes.size(), 255));
  for (size_t i = 0; i < std::min(sizes.size(), shm::Call::kSizes); ++i) call.sizes[i] = sizes[i];
  call.bytes = bytes;
  return call;
}

shm::Call call_of(OpType op, const at::Tensor& tensor) { return call_of(op, tensor, tensor.sizes(), tensor.nbytes()); }

shm::Block block(const at::Tensor& tensor) { return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()}; }

std::vector<shm::Block> blocks(const Tensors& tensors) {
  std::vector<shm::Block> all;
  for (const auto& tensor : tensors) all.push_back(block(tensor));
  return all;
}

// A tensor's memory in equal parts.
std::vector<shm::Block> parts(const at::Tensor& tensor, int n) {
  std::vector<shm::Block> all;
  const size_t bytes = tensor.nbytes() / static_cast<size_t>(n);
  for (int i = 0; i < n; ++i) all.push_back({static_cast<char*>(tensor.data_ptr()) + bytes * static_cast<size_t>(i), bytes});
  return all;
}

// The same at one position of a list of empty blocks.
std::vector<shm::Block> only(int n, int position, shm::Block block) {
  std::vector<shm::Block> all(static_cast<size_t>(n));
  all[static_cast<size_t>(position)] = block;
  return all;
}

void set_reduction(shm::Call& call, const c10d::ReduceOp& op) {
  const auto reduction = static_cast<c10d::ReduceOp::RedOpType>(op);
  TORCH_CHECK_VALUE(reduction <= c10d::ReduceOp::BXOR, "shared memory does not support this reduction");
  TORCH_CHECK_VALUE(shm::reduces(call.type), "shared memory does not support reductions of ",
                    c10::toString(static_cast<at::ScalarType>(call.type)));
  TORCH_CHECK_VALUE(reduction != c10d::ReduceOp::AVG || c10::isFloatingType(static_cast<at::ScalarType>(call.type)),
                    "a mean of integers is not supported: it is invalid to round it");
  call.reduction = static_cast<uint8_t>(reduction);
}

// ---- the backend

class SharedMemory : public c10d::Backend, public WithMemory {
 public:
  SharedMemory(std::unique_ptr<shm::Members> members, bool compares, std::chrono::milliseconds timeout)
      : Backend(members->rank(), members->size()),
        post_(std::make_shared<Post>(std::move(members), compares, timeout)),
        compares_(compares),
        executor_(*post_->members) {}

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override { post_->timeout = timeout; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>("shm", post_->timeout); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void abort() override { members().abort(); }

  const std::shared_ptr<Post>& post() const override { return post_; }
  // Ends this rank's part in the group because of a failure elsewhere.
  void fail(int culprit) { members().fail(culprit); }
  // Tells the others that a thread of this rank begins or ends a wait for something outside of the shared memory.
  void waits_elsewhere(bool begins) { begins ? members().own().elsewhere.fetch_add(1) : members().own().elsewhere.fetch_sub(1); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    const auto root = static_cast<int>(o.rootRank);
    auto call = call_of(OpType::BROADCAST, tensors.at(0));
    call.root = root;
    auto plan = from_root(root, call);
    if (rank_ == root) plan.give = {block(tensors[0])};
    else plan.take = only(size_, root, block(tensors[0]));
    return exchange(call, std::move(plan), tensors, o.timeout);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    auto& tensor = tensors.at(0);
    if (tensor.is_sparse()) return allreduce_sparse(tensors, o);
    auto call = call_of(OpType::ALLREDUCE, tensor);
    set_reduction(call, o.reduceOp);
    if (size_ > 1 && tensor.nbytes() > shm::largest_for_one_step(size_)) {
      call.place = arena()->segment().place_of(tensor.data_ptr(), tensor.nbytes());
      return launch(std::make_unique<shm::LargeAllReduce>(members(), call, compares_, block(tensor)), call, tensors, o.timeout);
    }
    auto plan = all_to_all_of(call);
    plan.give = {block(tensor)};
    plan.combined = block(tensor);
    plan.combines = true;
    return exchange(call, std::move(plan), tensors, o.timeout);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    auto call = call_of(OpType::REDUCE, tensors.at(0));
    set_reduction(call, o.reduceOp);
    auto plan = to_root(call.root = static_cast<int>(o.rootRank), call);
    plan.give = {block(tensors[0])};
    plan.combines = true;
    if (rank_ == call.root) plan.combined = block(tensors[0]);
    return exchange(call, std::move(plan), tensors, o.timeout);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    const auto call = call_of(OpType::ALLGATHER, inputs.at(0));
    auto plan = all_to_all_of(call);
    plan.give = {block(inputs[0])};
    plan.take = blocks(outputs.at(0));
    return exchange(call, std::move(plan), with(inputs, outputs[0]), o.timeout);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& o) override {
    const auto call = call_of(OpType::_ALLGATHER_BASE, input);
    auto plan = all_to_all_of(call);
    plan.give = {block(input)};
    plan.take = parts(output, size_);
    return exchange(call, std::move(plan), {output, input}, o.timeout);
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    auto call = call_of(OpType::GATHER, inputs.at(0));
    auto plan = to_root(call.root = static_cast<int>(o.rootRank), call);
    plan.give = {block(inputs[0])};
    if (rank_ == call.root) plan.take = blocks(outputs.at(0));
    return exchange(call, std::move(plan), outputs.empty() ? inputs : with(inputs, outputs[0]), o.timeout);
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    auto call = call_of(OpType::SCATTER, outputs.at(0));
    auto plan = from_root(call.root = static_cast<int>(o.rootRank), call);
    plan.shared = false;
    if (rank_ == call.root) plan.give = blocks(inputs.at(0));
    plan.take = only(size_, call.root, block(outputs[0]));
    return exchange(call, std::move(plan), inputs.empty() ? outputs : with(outputs, inputs[0]), o.timeout);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    return reduce_parts(call_of(OpType::REDUCE_SCATTER, outputs.at(0)), outputs[0], blocks(inputs.at(0)),
                        with(outputs, inputs[0]), o);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    return reduce_parts(call_of(OpType::_REDUCE_SCATTER_BASE, input), output, parts(input, size_), {output, input}, o);
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receives, std::vector<int64_t>& sends,
                        const c10d::AllToAllOptions& o) override {
    const auto row = input.sizes().slice(1);
    const size_t bytes = input.itemsize() * static_cast<size_t>(c10::multiply_integers(row));
    const auto call = call_of(OpType::ALLTOALL_BASE, input, row, bytes);
    auto given = rows(sends, input), taken = rows(receives, output);
    shm::Exchange::Plan plan;
    plan.shared = false;
    plan.give = split(input, given, bytes);
    plan.take = split(output, taken, bytes);
    auto all = std::make_unique<shm::AllToAll>(members(), call, compares_, std::move(plan), std::move(given), std::move(taken));
    return launch(std::move(all), call, {output, input}, o.timeout);
  }

  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    shm::Call call;
    call.op = static_cast<uint8_t>(OpType::BARRIER);
    return exchange(call, all_to_all_of(call), {}, o.timeout);
  }

  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) override {
    const auto timeout = timeout_of(o.timeout);
    TORCH_CHECK(executor_.drain(shm::Deadline::in(timeout).at), "Operation timed out! Calls before this one have not ended");
    post_->messages.monitored_barrier(timeout, wait_all_ranks);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    auto transfer = transfer_of(tensors.at(0), to, tag);
    post_->messages.send(transfer);
    return c10::make_intrusive<MessageWork>(OpType::SEND, post_, std::move(transfer));
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override { return receive(tensors, OpType::RECV, from, tag); }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return receive(tensors, OpType::RECVANYSOURCE, shm::kAnySource, tag);
  }

 private:
  using Plan = shm::Exchange::Plan;

  shm::Members& members() const { return *post_->members; }

  static Tensors with(const Tensors& some, const Tensors& more) {
    Tensors all = some;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static Plan all_to_all_of(const shm::Call& call) {
    Plan plan;
    plan.bytes = call.bytes;
    return plan;
  }

  static Plan from_root(int root, const shm::Call& call) {
    auto plan = all_to_all_of(call);
    plan.only_from = root;
    return plan;
  }

  static Plan to_root(int root, const shm::Call& call) {
    auto plan = all_to_all_of(call);
    plan.only_to = root;
    return plan;
  }

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& o) {
    TORCH_CHECK_VALUE(static_cast<c10d::ReduceOp::RedOpType>(o.reduceOp) == c10d::ReduceOp::SUM,
                      "shared memory does not support this reduction of sparse tensors");
    const auto sum = std::make_shared<SparseSum>(tensors[0], size_);
    auto [mine, all] = sum->step(0);
    auto call = call_of(OpType::_ALLREDUCE_SPARSE, tensors[0], tensors[0].sizes(), mine.nbytes());
    auto next = [this, sum, call, number = 0]() mutable -> std::unique_ptr<shm::Collective> {
      if (++number == 3) {
        sum->finish();
        return nullptr;
      }
      const auto [mine, all] = sum->step(number);
      auto plan = gathering(mine, all);
      call.bytes = plan.bytes;
      return std::make_unique<shm::Exchange>(members(), call, compares_, std::move(plan));
    };
    auto chain = std::make_unique<shm::Chain>(members(), call, compares_, gathering(mine, all), std::move(next));
    return launch(std::move(chain), call, tensors, o.timeout);
  }

  // For tensors of different sizes.
  static Plan gathering(const at::Tensor& mine, const Tensors& all) {
    Plan plan;
    plan.give = {block(mine)};
    plan.take = blocks(all);
    for (const auto& part : plan.take) plan.bytes = std::max(plan.bytes, part.bytes);
    return plan;
  }

  WorkPtr reduce_parts(shm::Call call, const at::Tensor& output, std::vector<shm::Block> give, Tensors tensors,
                       const c10d::ReduceScatterOptions& o) {
    set_reduction(call, o.reduceOp);
    Plan plan;
    plan.shared = false;
    plan.give = std::move(give);
    plan.combined = block(output);
    plan.combines = true;
    plan.bytes = output.nbytes();
    return exchange(call, std::move(plan), std::move(tensors), o.timeout);
  }

  std::vector<int64_t> rows(const std::vector<int64_t>& splits, const at::Tensor& tensor) const {
    return splits.empty() ? std::vector<int64_t>(static_cast<size_t>(size_), tensor.size(0) / size_) : splits;
  }

  static std::vector<shm::Block> split(const at::Tensor& tensor, const std::vector<int64_t>& rows, size_t bytes) {
    std::vector<shm::Block> all;
    char* at = static_cast<char*>(tensor.data_ptr());
    for (int64_t n : rows) {
      all.push_back({at, static_cast<size_t>(n) * bytes});
      at += all.back().bytes;
    }
    return all;
  }

  std::chrono::milliseconds timeout_of(std::chrono::milliseconds given) const {
    return given == c10d::kUnsetTimeout ? post_->timeout.load() : given;
  }

  WorkPtr exchange(const shm::Call& call, Plan plan, Tensors tensors, std::chrono::milliseconds timeout) {
    auto all = std::make_unique<shm::Exchange>(members(), call, compares_, std::move(plan));
    return launch(std::move(all), call, std::move(tensors), timeout);
  }

  WorkPtr launch(std::unique_ptr<shm::Collective> collective, const shm::Call& call, Tensors tensors,
                 std::chrono::milliseconds timeout) {
    ++calls_;
    auto work = c10::make_intrusive<CollectiveWork>(static_cast<OpType>(call.op), std::move(tensors));
    const auto end = [work](std::exception_ptr failure) { work->end(std::move(failure)); };
    executor_.launch({std::move(collective), timeout_of(timeout), end}, caller_waits);
    return work;
  }

  shm::Messages::TransferPtr transfer_of(const at::Tensor& tensor, int peer, int tag) {
    auto transfer = std::make_shared<shm::Messages::Transfer>();
    transfer->peer = peer;
    transfer->tag = tag;
    transfer->memory = static_cast<char*>(tensor.data_ptr());
    transfer->bytes = tensor.nbytes();
    transfer->call = call_of(OpType::SEND, tensor); // both sides describe the same message
    transfer->owner = std::make_shared<at::Tensor>(tensor);
    return transfer;
  }

  WorkPtr receive(Tensors& tensors, OpType op, int from, int tag) {
    auto transfer = transfer_of(tensors.at(0), from, tag);
    post_->messages.receive(transfer);
    return c10::make_intrusive<MessageWork>(op, post_, std::move(transfer));
  }

  const std::shared_ptr<Post> post_;
  const bool compares_;
  std::atomic<uint64_t> calls_{0};
  shm::Executor executor_; // ends its jobs before the memory is freed
};

// ---- buckets

thread_local const std::shared_ptr<shm::Arena>* bucket_arena = nullptr;

// Passes all requests on to the previous allocator, except for buckets.
struct BucketAllocator : c10::Allocator {
  c10::Allocator* const usual = c10::GetCPUAllocator();

  at::DataPtr allocate(size_t bytes) override {
    if (bucket_arena == nullptr || bytes < shm::kBlock) return usual->allocate(bytes);
    const auto arena = *bucket_arena;
    const uint64_t place = arena->take(bytes);
    if (place == shm::kNowhere) return usual->allocate(bytes);
    auto* bucket = new Bucket{arena, place};
    return {arena->segment().at(place), bucket, &Bucket::free, at::Device(at::kCPU)};
  }

  at::DeleterFnPtr raw_deleter() const override { return usual->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  // Memory of an arena, which it keeps alive.
  struct Bucket {
    std::shared_ptr<shm::Arena> arena;
    uint64_t place;

    static void free(void* bucket) {
      auto* self = static_cast<Bucket*>(bucket);
      self->arena->give_back(self->place);
      delete self;
    }
  };
};

void install_bucket_allocator() {
  static auto* const allocator = [] {
    auto* made = new BucketAllocator();
    c10::SetCPUAllocator(made, 255);
    return made;
  }();
  (void)allocator;
}

// While it lives, this thread's larger tensors are created in the group's shared memory, if it has any.
class BucketsIn {
 public:
  explicit BucketsIn(const c10::intrusive_ptr<c10d::Backend>& backend) {
    if (const auto* memory = dynamic_cast<const WithMemory*>(backend.get())) bucket_arena = &memory->arena();
  }
  ~BucketsIn() { bucket_arena = nullptr; }
  BucketsIn(const BucketsIn&) = delete;
  BucketsIn& operator=(const BucketsIn&) = delete;
};

// ---- waits

// May outlive the group, so another thread may use it at any time.
struct ArrivalsHandle {
  std::weak_ptr<Post> post;
};

// ---- the store

struct StoreKeys : shm::Keys {
  explicit StoreKeys(c10::intrusive_ptr<c10d::Store> store) : store(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store->set(key, std::vector<uint8_t>(value.begin(), value.end())); }

  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    std::vector<std::string> values;
    for (const auto& value : store->multiGet(keys)) values.emplace_back(value.begin(), value.end());
    return values;
  }

  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds time) override {
    try {
      store->wait(keys, time);
      return true;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (text.find("imeout") == std::string::npos && text.find("imed out") == std::string::npos) throw;
      return false;
    }
  }

  c10::intrusive_ptr<c10d::Store> store;
};

} // namespace

extern "C" {

// The waits of the group's collectives for each rank; null unless ranks share memory.
ArrivalsHandle* lc_group_arrivals(const GroupHandle* group) noexcept {
  const auto* memory = dynamic_cast<const WithMemory*>(group->backend.get());
  return memory == nullptr ? nullptr : new (std::nothrow) ArrivalsHandle{memory->post()};
}

// `seconds` has room for `n` ranks; it is NaN for ranks on other hosts. The wait in progress is for rank `*now_for`, for a rank
// on another host (shm::kElsewhere), or there is none (-1). Returns false if the group is gone.
bool lc_arrivals_read(const ArrivalsHandle* arrivals, double* seconds, size_t n, int32_t* now_for, double* now_seconds) noexcept {
  const auto post = arrivals->post.lock();
  if (!post) return false;
  bool read = false;
  (void)guard([&] {
    const auto& members = *post->members;
    const auto waits = members.waits();
    std::fill_n(seconds, n, std::numeric_limits<double>::quiet_NaN());
    for (int rank = 0; rank < members.size(); ++rank) {
      const auto name = static_cast<size_t>(members.name(rank));
      if (name >= n) return;
      seconds[name] = waits.seconds[static_cast<size_t>(rank)];
    }
    *now_for = waits.now_for < 0 ? waits.now_for : members.name(waits.now_for);
    *now_seconds = waits.now_seconds;
    read = true;
  });
  return read;
}

void lc_arrivals_free(ArrivalsHandle* arrivals) noexcept { delete arrivals; }

// Tells that the calling thread will wait for the operation that it starts next. Only a hint.
void lc_caller_waits(bool waits) noexcept { caller_waits = waits; }

} // extern "C"
