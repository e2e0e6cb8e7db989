// How the ranks of a group find out that they can share memory, and do.
#pragma once

#include "members.hpp"

namespace shm {

// The group's store.
struct Keys {
  virtual ~Keys() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Of keys that are there.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  // Returns false after `time`.
  virtual bool wait(const std::vector<std::string>& keys, Milliseconds time) = 0;
};

struct Met {
  bool all_compare = false;         // all ranks want to compare their calls
  std::unique_ptr<Members> members; // null if the ranks cannot share memory
  std::string reason;               // why
};

// All ranks of the group get members, or all get the same kind of answer without. `foreign` returns true if a rank that has not
// come is here in another program, which does not know this protocol; null if that cannot be.
Met meet(Keys& keys, int rank, int size, bool compares, Milliseconds timeout, const std::function<bool(int)>& foreign);

} // namespace shm
