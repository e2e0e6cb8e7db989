// The backend of groups over several hosts: collectives go through shared memory within each host, through Gloo between the hosts' first
// ranks, and back through memory. Messages, and collectives whose tensors are sparse or differ for each pair of ranks, use a Gloo group
// of all ranks.
//
// Every rank gets the bits that one rank has computed, so all have the same.

#include "levels.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

using namespace shim;
using RedOp = c10d::ReduceOp::RedOpType;

namespace {

// A collective under way: its deadlines, and memory that outlives a failure.
//
// Each level waits a little longer than the one before. So a rank gives up first at the level where another rank is lost, and the
// ranks that wait for it learn why.
class Run {
 public:
  explicit Run(Milliseconds time) : slack_(std::min<Milliseconds>(time / 2, std::chrono::seconds(5))), until_(shm::Deadline::in(time).at) {}

  enum Level { kUp = 0, kBetween = 1, kDown = 2 };

  Milliseconds left(Level level) const {
    const auto left = std::chrono::duration_cast<Milliseconds>(until_ - shm::Clock::now()) + static_cast<int>(level) * slack_;
    return std::max(left, Milliseconds(1));
  }

  at::Tensor keep(at::Tensor scratch) {
    kept_.push_back(scratch);
    return scratch;
  }

 private:
  const Milliseconds slack_;
  const shm::Clock::time_point until_;
  Tensors kept_;
};

// The tensor's memory, without its graph, its versions and its shape.
at::Tensor flat(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {tensor.numel()}, at::TensorOptions(tensor.scalar_type()));
}

at::Tensor flat_bytes(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::TensorOptions(at::kByte));
}

void check_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  shm::Call call;
  call.type = static_cast<uint8_t>(tensor.scalar_type());
  set_reduction(call, op);
}

class TwoLevels : public c10d::Backend, public WithMemory {
 public:
  TwoLevels(std::shared_ptr<Levels> levels, Milliseconds timeout)
      : Backend(levels->rank(), levels->all().getSize()),
        levels_(std::move(levels)),
        timeout_(timeout),
        host_of_(static_cast<size_t>(size_)),
        position_of_(static_cast<size_t>(size_)) {
    const auto& hosts = levels_->hosts();
    for (size_t host = 0; host < hosts.size(); ++host) {
      most_ = std::max(most_, static_cast<int64_t>(hosts[host].size()));
      for (size_t position = 0; position < hosts[host].size(); ++position) {
        host_of_[static_cast<size_t>(hosts[host][position])] = static_cast<int>(host);
        position_of_[static_cast<size_t>(hosts[host][position])] = static_cast<int>(position);
      }
    }
  }

  const std::string getBackendName() const override { return "shm+gloo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>("shm+gloo", timeout_); }
  void setTimeout(Milliseconds timeout) override {
    timeout_ = timeout;
    levels_->set_timeout(timeout);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void abort() override { levels_->abort(); }
  const std::shared_ptr<Post>& post() const override { return levels_->local().post(); }

  // ---- in two levels

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    if (tensors.at(0).is_sparse()) return directly(OpType::_ALLREDUCE_SPARSE, [&](auto& all) { return all.allreduce(tensors, o); });
    check_reduction(tensors.at(0), o.reduceOp);
    return launch(OpType::ALLREDUCE, tensors, o.timeout, [this, tensor = tensors[0], op = o.reduceOp](Run& run) {
      auto sum = flat(tensor);
      within(run, Run::kUp, [&](auto& local, auto left) {
        return local.allreduce(list(sum), reduction<c10d::AllreduceOptions>(op, left));
      });
      all_reduce_between(run, sum, op);
      share(run, sum);
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    check_reduction(tensors.at(0), o.reduceOp);
    return launch(OpType::REDUCE, tensors, o.timeout, [this, tensor = tensors[0], o](Run& run) {
      auto sum = flat(tensor);
      to_leader(run, sum, o.reduceOp);
      between(run, [&](auto& leaders, auto left) {
        auto options = reduction<c10d::ReduceOptions>(o.reduceOp, left);
        options.rootRank = host_of(o.rootRank);
        return leaders.reduce(list(sum), options);
      });
      if (host_of(o.rootRank) != host_of(rank_)) return;
      divide(sum, o.reduceOp);
      if (position_of(o.rootRank) != 0) share(run, sum);
    });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    return launch(OpType::BROADCAST, tensors, o.timeout, [this, tensor = tensors.at(0), root = o.rootRank](Run& run) {
      auto all = flat(tensor);
      const bool here = host_of(root) == host_of(rank_);
      if (here) share(run, all, position_of(root), Run::kUp);
      between(run, [&](auto& leaders, auto left) {
        return leaders.broadcast(list(all), rooted<c10d::BroadcastOptions>(host_of(root), left));
      });
      if (!here) share(run, all);
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    return launch(OpType::ALLGATHER, with(inputs, outputs.at(0)), o.timeout, [this, input = inputs.at(0), outputs = outputs[0]](Run& run) {
      auto all = run.keep(at::empty({gathered(input)}, at::kByte));
      gather_all(run, flat_bytes(input), all);
      for (int rank = 0; rank < size_; ++rank) flat_bytes(outputs.at(static_cast<size_t>(rank))).copy_(block_of(all, rank));
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& o) override {
    return launch(OpType::_ALLGATHER_BASE, {output, input}, o.timeout, [this, output, input](Run& run) {
      auto target = flat_bytes(output);
      if (in_order()) return gather_all(run, flat_bytes(input), target);
      auto all = run.keep(at::empty({gathered(input)}, at::kByte));
      gather_all(run, flat_bytes(input), all);
      const auto n = static_cast<int64_t>(input.nbytes());
      for (int rank = 0; rank < size_; ++rank) target.narrow(0, rank * n, n).copy_(block_of(all, rank));
    });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    check_reduction(outputs.at(0), o.reduceOp);
    return launch(OpType::REDUCE_SCATTER, with(outputs, inputs.at(0)), o.timeout,
                  [this, output = outputs[0], inputs = inputs[0], op = o.reduceOp](Run& run) {
                    Tensors rows;
                    for (const auto& input : inputs) rows.push_back(flat(input));
                    reduce_parts(run, run.keep(at::cat(rows)), flat(output), op);
                  });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    check_reduction(output, o.reduceOp);
    return launch(OpType::_REDUCE_SCATTER_BASE, {output, input}, o.timeout, [this, output, input, op = o.reduceOp](Run& run) {
      reduce_parts(run, levels_->leaders() == nullptr ? flat(input) : run.keep(flat(input).clone()), flat(output), op);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return launch(OpType::BARRIER, {}, o.timeout, [this](Run& run) {
      const auto options = [](Milliseconds left) {
        c10d::BarrierOptions made;
        made.timeout = left;
        return made;
      };
      within(run, Run::kUp, [&](auto& local, auto left) { return local.barrier(options(left)); });
      between(run, [&](auto& leaders, auto left) { return leaders.barrier(options(left)); });
      within(run, Run::kDown, [&](auto& local, auto left) { return local.barrier(options(left)); });
    });
  }

  // ---- over the Gloo group of all ranks

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    return directly(OpType::GATHER, [&](auto& all) { return all.gather(outputs, inputs, o); });
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    return directly(OpType::SCATTER, [&](auto& all) { return all.scatter(outputs, inputs, o); });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receives, std::vector<int64_t>& sends,
                        const c10d::AllToAllOptions& o) override {
    return directly(OpType::ALLTOALL_BASE, [&](auto& all) { return all.alltoall_base(output, input, receives, sends, o); });
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return directly(OpType::SEND, [&](auto& all) { return all.send(tensors, to, tag); }, to);
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return directly(OpType::RECV, [&](auto& all) { return all.recv(tensors, from, tag); }, from);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return directly(OpType::RECVANYSOURCE, [&](auto& all) { return all.recvAnysource(tensors, tag); });
  }

  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) override {
    levels_->check_not_failed();
    const auto timeout = timeout_of(o.timeout);
    TORCH_CHECK(queue_.drain(shm::Deadline::in(timeout).at), "Operation timed out! Calls before this one have not ended");
    try {
      levels_->all().monitoredBarrier(o, wait_all_ranks);
    } catch (...) {
      // The others are told; this rank's error already names who is missing.
      (void)levels_->give_up(std::current_exception());
      throw;
    }
  }

 private:
  static Tensors with(const Tensors& some, const Tensors& more) {
    Tensors all = some;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  shm::Members& members() const { return *post()->members; }
  int host_of(int64_t rank) const { return host_of_[static_cast<size_t>(rank)]; }
  int position_of(int64_t rank) const { return position_of_[static_cast<size_t>(rank)]; }

  // Backends take lists by reference.
  Tensors& list(const at::Tensor& tensor) {
    list_ = {tensor};
    return list_;
  }

  // Averages are computed from sums, at the end.
  template <class O>
  static O reduction(const c10d::ReduceOp& op, Milliseconds left) {
    O options;
    const auto kind = static_cast<RedOp>(op);
    options.reduceOp = kind == RedOp::AVG ? RedOp::SUM : kind;
    options.timeout = left;
    return options;
  }

  template <class O>
  static O rooted(int root, Milliseconds left) {
    O options;
    options.rootRank = root;
    options.timeout = left;
    return options;
  }

  void divide(at::Tensor& sum, const c10d::ReduceOp& op) const {
    if (levels_->leaders() != nullptr && static_cast<RedOp>(op) == RedOp::AVG) sum.div_(size_);
  }

  // Calls an operation among the ranks of this host, on this thread.
  template <class Launch>
  void within(Run& run, Run::Level level, Launch&& launch) {
    const CallerWaits hint;
    std::optional<shm::Members::ForOtherHosts> waits;
    if (level == Run::kDown) waits.emplace(members());
    launch(levels_->local(), run.left(level))->wait();
  }

  // Calls an operation among the hosts' first ranks.
  template <class Launch>
  void between(Run& run, Launch&& launch) {
    if (levels_->leaders() == nullptr) return;
    const shm::Members::ForOtherHosts waits(members());
    launch(*levels_->leaders(), run.left(Run::kBetween))->wait();
  }

  void all_reduce_between(Run& run, at::Tensor& sum, const c10d::ReduceOp& op) {
    between(run, [&](auto& leaders, auto left) { return leaders.allreduce(list(sum), reduction<c10d::AllreduceOptions>(op, left)); });
    divide(sum, op);
  }

  // Changes the tensor of the host's first rank only.
  void to_leader(Run& run, const at::Tensor& tensor, const c10d::ReduceOp& op) {
    within(run, Run::kUp, [&](auto& local, auto left) { return local.reduce(list(tensor), reduction<c10d::ReduceOptions>(op, left)); });
  }

  // Copies a tensor of one rank of this host, usually the first, to the others.
  void share(Run& run, const at::Tensor& tensor, int position = 0, Run::Level level = Run::kDown) {
    within(run, level, [&](auto& local, auto left) {
      return local.broadcast(list(tensor), rooted<c10d::BroadcastOptions>(position, left));
    });
  }

  // ---- gathered bytes: for each host as many blocks as the largest host has ranks

  int64_t gathered(const at::Tensor& input) const {
    return static_cast<int64_t>(levels_->hosts().size()) * most_ * static_cast<int64_t>(input.nbytes());
  }

  at::Tensor block_of(const at::Tensor& all, int rank) const {
    const int64_t n = all.numel() / (static_cast<int64_t>(levels_->hosts().size()) * most_);
    return all.narrow(0, (host_of(rank) * most_ + position_of(rank)) * n, n);
  }

  // Returns true if the blocks are in the order of ranks.
  bool in_order() const {
    for (int rank = 0; rank < size_; ++rank)
      if (host_of(rank) * most_ + position_of(rank) != rank) return false;
    return size_ == static_cast<int64_t>(levels_->hosts().size()) * most_;
  }

  void gather_all(Run& run, at::Tensor input, at::Tensor& all) {
    const int64_t n = input.numel(), here = static_cast<int64_t>(levels_->hosts()[static_cast<size_t>(host_of(rank_))].size());
    const bool leads = levels_->leaders() != nullptr;
    auto own = run.keep(at::zeros({leads ? most_ * n : 0}, at::kByte));
    std::vector<Tensors> blocks(leads ? 1 : 0);
    for (int64_t i = 0; leads && i < here; ++i) blocks[0].push_back(own.narrow(0, i * n, n));
    within(run, Run::kUp, [&](auto& local, auto left) { return local.gather(blocks, list(input), rooted<c10d::GatherOptions>(0, left)); });
    between(run, [&](auto& leaders, auto left) {
      c10d::AllgatherOptions options;
      options.timeout = left;
      return leaders._allgather_base(all, own, options);
    });
    share(run, all);
  }

  // `input` has one part for each rank. On the first rank of a host, it is changed.
  void reduce_parts(Run& run, at::Tensor input, at::Tensor output, const c10d::ReduceOp& op) {
    to_leader(run, input, op);
    all_reduce_between(run, input, op);
    std::vector<Tensors> parts;
    if (levels_->leaders() != nullptr) {
      parts.emplace_back();
      for (int rank : levels_->hosts()[static_cast<size_t>(host_of(rank_))])
        parts[0].push_back(input.narrow(0, rank * output.numel(), output.numel()));
    }
    within(run, Run::kDown, [&](auto& local, auto left) {
      return local.scatter(list(output), parts, rooted<c10d::ScatterOptions>(0, left));
    });
  }

  // ---- calls

  Milliseconds timeout_of(Milliseconds given) const { return given == c10d::kUnsetTimeout ? timeout_.load() : given; }

  WorkPtr launch(OpType type, Tensors tensors, Milliseconds timeout, std::function<void(Run&)> body) {
    ++calls_;
    auto work = c10::make_intrusive<CollectiveWork>(type, std::move(tensors));
    queue_.run([this, work, body = std::move(body), timeout = timeout_of(timeout)] { work->end(result_of(body, timeout)); }, caller_waits);
    return work;
  }

  // Runs the operation and returns its failure, or null. Gloo may still use the memory of a failed operation, so that is
  // never freed.
  std::exception_ptr result_of(const std::function<void(Run&)>& body, Milliseconds timeout) {
    auto run = std::make_unique<Run>(timeout);
    try {
      levels_->check_not_failed();
      body(*run);
      return nullptr;
    } catch (...) {
      (void)run.release();
      (void)new std::function<void(Run&)>(body);
      return levels_->give_up(std::current_exception());
    }
  }

  // After a wrong argument the rank does not give up.
  template <class Launch>
  WorkPtr directly(OpType type, Launch&& launch, int peer = -1) {
    levels_->check_not_failed();
    try {
      return c10::make_intrusive<OfAll>(type, launch(levels_->all()), levels_, peer);
    } catch (...) {
      const auto why = std::current_exception();
      if (!is_loss(text_of(why))) throw;
      std::rethrow_exception(levels_->give_up(why));
    }
  }

  const std::shared_ptr<Levels> levels_;
  std::atomic<Milliseconds> timeout_;
  std::vector<int> host_of_, position_of_; // by rank
  int64_t most_ = 0;                       // the largest number of ranks on a host
  std::atomic<uint64_t> calls_{0};
  Tensors list_; // one collective runs at a time
  Queue queue_;  // ends its calls before the levels are destroyed
};

} // namespace

// Creates backends that share memory: on one host, or in two levels over several.
//
// Not here: how ranks find out that they can (shm/meeting.cpp).

namespace {

BackendPtr gloo_group(const StorePtr& store, int rank, int size, const MemberConfig& config, Bytes interface, Bytes host) {
  auto options = gloo_options(config, interface, host);
  options->group_name = to_string(config.group_name);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

// Connects the levels of a group whose ranks have met.
std::shared_ptr<Levels> connect(shm::Met met, const MemberConfig& config, Bytes interface, Bytes host) {
  const StorePtr store = config.store->store;
  auto all = gloo_group(store, config.rank, config.size, config, interface, host);
  BackendPtr leaders;
  for (size_t i = 0; i < met.hosts.size(); ++i) {
    if (met.hosts[i][0] != config.rank) continue;
    const StorePtr below = c10::make_intrusive<c10d::PrefixStore>("lockstep/leaders", store);
    leaders = gloo_group(below, static_cast<int>(i), static_cast<int>(met.hosts.size()), config, interface, host);
  }
  auto local = c10::make_intrusive<SharedMemory>(std::move(met.members), false, Milliseconds(config.timeout_ms));
  return std::make_shared<Levels>(config.rank, std::move(met.hosts), std::move(local), std::move(leaders), std::move(all),
                                  Words(store, std::move(met.names)));
}

// A rank's request for a group in shared memory.
struct MemoryRequest {
  uint8_t reach; // shm::Reach
  bool or_gloo;  // ranks of other programs may join; they are recognized by Gloo's keys
  bool compares;
  Bytes host;    // for tests: distinguishes hosts that are the same
  size_t page;   // for tests: the size of a page; 0 for the system's
};

} // namespace

extern "C" {

// For CPU tensors of ranks that can share memory, on one host or in two levels. If they cannot, `*out` stays null. `*why` gets the
// reason, either way. `*guard_compares` is set if the guard should compare calls.
Status lc_backend_memory(const MemberConfig* config, const MemoryRequest* request, Bytes interface, Bytes host, BackendHandle** out,
                         Blobs** why, bool* is_two_levels, bool* guard_compares) noexcept {
  return guard([&] {
    StoreKeys keys(config->store->store);
    const auto timeout = Milliseconds(config->timeout_ms);
    std::function<bool(int)> foreign;
    if (request->or_gloo) foreign = [&](int rank) { return keys.store->check({"0/" + std::to_string(rank)}); };
    const auto reach = static_cast<shm::Reach>(request->reach);
    auto met = shm::meet(keys, config->rank, config->size, {reach, request->compares, to_string(request->host), request->page}, timeout, foreign);
    *why = new Blobs{{std::vector<uint8_t>(met.reason.begin(), met.reason.end())}};
    if (!met.members) return;
    install_bucket_allocator();
    const bool compares = met.all_compare && config->size > 1;
    *is_two_levels = met.hosts.size() > 1 || reach == shm::Reach::Any;
    *guard_compares = *is_two_levels && compares;
    BackendPtr made;
    if (*is_two_levels) made = c10::make_intrusive<TwoLevels>(connect(std::move(met), *config, interface, host), timeout);
    else made = c10::make_intrusive<SharedMemory>(std::move(met.members), compares, timeout);
    *out = new BackendHandle{made, c10d::ProcessGroup::BackendType::CUSTOM, {}, {}, {}, {}};
  });
}

} // extern "C"
