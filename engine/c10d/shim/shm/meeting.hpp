// How the ranks of a group find out whether they can share memory, and set it up.
#pragma once

#include "members.hpp"

namespace shm {

// The group's store.
struct Keys {
  virtual ~Keys() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // The keys must exist.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  // Returns false after `time`.
  virtual bool wait(const std::vector<std::string>& keys, Milliseconds time) = 0;
};

// Which hosts a group's ranks may be on.
enum class Reach : uint8_t {
  OneHost = 0,
  Pairs = 1, // one, or several if at least one has two ranks
  Any = 2,
};

struct Request {
  Reach reach = Reach::OneHost;
  bool compares = false;
  std::string host; // for tests: distinguishes hosts that are the same
  size_t page = 0;  // for tests: the size of a page; 0 for the system's
};

struct Met {
  bool all_compare = false;            // all ranks want to compare their calls
  std::unique_ptr<Members> members;    // of this rank's host; null if not all hosts' ranks can share memory
  std::vector<std::vector<int>> hosts; // the ranks of each host, in the order of their first ranks
  std::vector<std::string> names;      // by rank: the name of its socket, unique to this meeting
  std::string reason;                  // why, either way
};

// Either all ranks of the group get members, or all get an answer without members. `foreign` returns true if a rank that has
// not published its place runs another program, which does not know this protocol; null if there can be no such rank.
Met meet(Keys& keys, int rank, int size, const Request& request, Milliseconds timeout, const std::function<bool(int)>& foreign);

} // namespace shm
