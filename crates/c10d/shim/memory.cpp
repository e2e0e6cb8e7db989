// Creates backends that share memory: on one host, or in two levels over several.
//
// Not here: how ranks find out that they can (shm/meeting.cpp).

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

using namespace shim;

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

// What a rank wants of a group in shared memory.
struct MemoryWish {
  uint8_t reach; // shm::Reach
  bool or_gloo;  // ranks of other programs may join, which are known by Gloo's keys
  bool compares;
  Bytes host;    // for tests: distinguishes hosts that are the same
};

} // namespace

extern "C" {

// For CPU tensors of ranks that can share memory, on one host or in two levels. If they cannot, `*out` stays null. `*why` says why,
// either way. `*guard_compares` is set if the guard should compare calls.
Status lc_backend_memory(const MemberConfig* config, const MemoryWish* wish, Bytes interface, Bytes host, BackendHandle** out,
                         Blobs** why, bool* is_two_levels, bool* guard_compares) noexcept {
  return guard([&] {
    StoreKeys keys(config->store->store);
    const auto timeout = Milliseconds(config->timeout_ms);
    std::function<bool(int)> foreign;
    if (wish->or_gloo) foreign = [&](int rank) { return keys.store->check({"0/" + std::to_string(rank)}); };
    const auto reach = static_cast<shm::Reach>(wish->reach);
    auto met = shm::meet(keys, config->rank, config->size, {reach, wish->compares, to_string(wish->host)}, timeout, foreign);
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
