// Finds Gloo's closed connections, and closes a rank's own. c10d has no call for either.

#pragma once

#include "shim.hpp"

namespace shim {

// No message has this tag: the tags of messages (src/p2p.rs) are smaller.
constexpr int kNoTag = 1 << 20;

// A message that never comes; null if the connection is closed.
inline c10::intrusive_ptr<c10d::Work> never(c10d::Backend& gloo, int from) {
  try {
    std::vector<at::Tensor> scratch{at::empty({1}, at::kByte)};
    return gloo.recv(scratch, from, kNoTag);
  } catch (...) {
    return nullptr;
  }
}

inline std::vector<int> closed_by(c10d::Backend& gloo) {
  std::vector<int> ranks;
  for (int peer = 0; peer < gloo.getSize(); ++peer)
    if (peer != gloo.getRank() && !never(gloo, peer)) ranks.push_back(peer);
  return ranks;
}

// Gloo closes all connections of a group when a wait for a message expires, which ends all waits of this rank and of its peers. May
// be called by any thread.
inline void close_connections(c10d::Backend& gloo) {
  for (int peer = 0; peer < gloo.getSize(); ++peer) {
    // A connection that was closed before shows nothing about the others.
    const auto work = peer == gloo.getRank() ? nullptr : never(gloo, peer);
    if (!work) continue;
    try {
      work->wait(std::chrono::milliseconds(1));
    } catch (...) {
      // It has expired, or the peer has closed this connection alone.
    }
  }
}

} // namespace shim
