// The protocol: each rank publishes its place and the name of a socket. The ranks of one host connect, and pass their memory files
// to each other. Each rank publishes whether that succeeded, and reads all answers, so all decide the same.
//
// The connections stay open: the kernel closes them when a rank dies.

#include "meeting.hpp"
#include "reduce.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

using namespace shm;

namespace {

constexpr int kVersion = 2;
// The time between two checks for ranks of other programs.
constexpr Milliseconds kSlice{100};
constexpr size_t kName = 32;
constexpr const char* kYes = "yes";
constexpr const char* kYesAndCompares = "yes, and compares calls";
constexpr const char* kGivesUp = "gives up because another rank does";

std::string place_key(int rank) { return "lockstep/memory/" + std::to_string(rank); }
std::string answer_key(int rank) { return "lockstep/mapped/" + std::to_string(rank); }

std::vector<std::string> all(int size, std::string (*key)(int)) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key(rank));
  return keys;
}

[[noreturn]] void refuse(const std::string& what) { throw Failure(what + ": " + std::strerror(errno)); }

// ---- this rank's place

// Ranks in different network namespaces do not see each other's sockets, even on one kernel.
std::string host() {
  std::string boot;
  struct stat network {};
  if (!(std::ifstream("/proc/sys/kernel/random/boot_id") >> boot) || ::stat("/proc/self/ns/net", &network) != 0)
    throw Failure("/proc does not tell which host this is");
  return boot + "/" + std::to_string(network.st_ino);
}

struct Socket {
  int fd = -1;
  Socket() = default;
  explicit Socket(int fd) : fd(fd) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
};

Socket new_socket() {
  Socket made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made.fd < 0) refuse("socket");
  return made;
}

std::string random_name() {
  unsigned char bytes[kName / 2];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) refuse("getrandom");
  std::string name;
  for (unsigned char byte : bytes) name += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return name;
}

// An abstract name starts with a zero byte. It is not in the file system, and disappears with its socket.
socklen_t abstract(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// ---- greetings: a rank's position on its host, the name that it connected to, and its memory file

struct Greeting {
  int32_t version, position;
  char name[kName];
};

constexpr auto kGreetingBytes = static_cast<ssize_t>(sizeof(Greeting));

// A message with a greeting and room for one file.
struct Parcel {
  Greeting greeting{};
  iovec data{&greeting, sizeof greeting};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  Parcel() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;
};

void send_greeting(int socket, int position, const std::string& name, int file) {
  Parcel parcel;
  parcel.greeting = {kVersion, position, {}};
  std::memcpy(parcel.greeting.name, name.data(), std::min(name.size(), kName));
  cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof file);
  std::memcpy(CMSG_DATA(header), &file, sizeof file);
  if (::sendmsg(socket, &parcel.message, MSG_NOSIGNAL) != kGreetingBytes) refuse("passing a memory file");
}

// Calls `check` whenever nothing has arrived for a while.
void wait_readable(int socket, const Deadline& deadline, const std::function<void()>& check = [] {}) {
  pollfd one{socket, POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline.at - Clock::now());
    if (left.count() <= 0) throw Failure("Timed out waiting " + std::to_string(deadline.given.count()) + "ms for a rank's memory");
    const int ready = ::poll(&one, 1, static_cast<int>(std::min(left, kSlice).count()));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) refuse("poll");
    check();
  }
}

// Returns the peer's memory file.
Socket receive_greeting(int socket, const std::string& name, int& position, const Deadline& deadline) {
  wait_readable(socket, deadline);
  Parcel parcel;
  const Greeting& greeting = parcel.greeting;
  const ssize_t got = ::recvmsg(socket, &parcel.message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&parcel.message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) throw Failure("connection closed by a rank that was about to share memory");
  Socket file;
  std::memcpy(&file.fd, CMSG_DATA(header), sizeof file.fd);
  if (got != kGreetingBytes || greeting.version != kVersion || std::memcmp(greeting.name, name.data(), kName) != 0)
    throw Failure("another program connected to a rank's socket");
  position = greeting.position;
  return file;
}

void check_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) refuse("SO_PEERCRED");
  if (peer.uid != ::geteuid()) throw Failure("a rank runs as another user");
}

// ---- the meeting

struct Place {
  std::string host, name, reason;
};

struct Meeting {
  Keys& keys;
  const int rank, size;
  std::shared_ptr<Arena> arena;
  Socket listener;
  std::string name;
  std::vector<Place> places;
  // The members on this rank's host, by position: their ranks in the group, their memory, and the connections to them.
  std::vector<int> ranks;
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<Socket> sockets;
  int position = 0; // this rank's

  // Everything that may fail on this rank alone. The file has room for all ranks of the group, on any host.
  void prepare(const std::string& claim, size_t page) {
    if (static_cast<size_t>(size) > kMostSources) throw Failure("sums have room for " + std::to_string(kMostSources) + " ranks");
    arena = std::make_shared<Arena>(Segment::make(static_cast<size_t>(size), page > 0 ? page : page_size()));
    listener = new_socket();
    name = random_name();
    sockaddr_un address;
    const socklen_t length = abstract(name, address);
    if (::bind(listener.fd, reinterpret_cast<sockaddr*>(&address), length) != 0) refuse("bind");
    if (::listen(listener.fd, SOMAXCONN) != 0) refuse("listen");
    keys.set(place_key(rank), "memory " + std::to_string(kVersion) + " " + host() + claim + " " + name);
  }

  void read_places() {
    const auto texts = keys.get(all(size, place_key));
    for (int peer = 0; peer < size; ++peer) {
      const std::string& text = texts[peer];
      std::istringstream words(text);
      std::string word;
      int version = 0;
      Place place;
      if (words >> word && word == "memory" && words >> version && version == kVersion) words >> place.host >> place.name;
      else place.reason = "rank " + std::to_string(peer) + ": " + text;
      places.push_back(std::move(place));
    }
  }

  std::vector<std::vector<int>> hosts() const {
    std::vector<std::vector<int>> all;
    for (int peer = 0; peer < size; ++peer) {
      const auto same = [&](const std::vector<int>& host) { return places[host[0]].host == places[peer].host; };
      const auto known = std::find_if(all.begin(), all.end(), same);
      if (known == all.end()) all.push_back({peer});
      else known->push_back(peer);
    }
    return all;
  }

  std::string why_not(const std::vector<std::vector<int>>& hosts, Reach reach) const {
    for (const auto& place : places)
      if (!place.reason.empty()) return place.reason;
    if (hosts.size() == 1 || reach == Reach::Any) return "";
    if (reach == Reach::OneHost)
      return "ranks 0 and " + std::to_string(hosts[1][0]) + " are on different hosts or in different network namespaces";
    const auto several = [](const std::vector<int>& host) { return host.size() > 1; };
    return std::any_of(hosts.begin(), hosts.end(), several) ? "" : "no two ranks are on one host and in one network namespace";
  }

  void connect(const std::vector<std::vector<int>>& hosts, const Deadline& deadline) {
    for (const auto& host : hosts) {
      const auto own = std::find(host.begin(), host.end(), rank);
      if (own == host.end()) continue;
      ranks = host;
      position = static_cast<int>(own - host.begin());
    }
    segments.resize(ranks.size());
    sockets.resize(ranks.size());
    const int own = arena->segment().file();
    for (int peer = 0; peer < position; ++peer) {
      sockets[peer] = new_socket();
      sockaddr_un address;
      const socklen_t length = abstract(places[ranks[peer]].name, address);
      if (::connect(sockets[peer].fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
        refuse("connecting to rank " + std::to_string(ranks[peer]));
    }
    for (int peer = 0; peer < position; ++peer) {
      check_user(sockets[peer].fd);
      send_greeting(sockets[peer].fd, position, places[ranks[peer]].name, own);
    }
    for (size_t more = static_cast<size_t>(position) + 1; more < ranks.size(); ++more) accept(deadline, own);
    for (int peer = 0; peer < position; ++peer) {
      int sender = -1;
      auto file = receive_greeting(sockets[peer].fd, places[ranks[peer]].name, sender, deadline);
      map(peer, std::move(file));
    }
  }

  // A rank that cannot connect does not appear here, but publishes an answer.
  void check_nobody_gave_up() {
    for (size_t peer = static_cast<size_t>(position) + 1; peer < ranks.size(); ++peer)
      if (sockets[peer].fd < 0 && keys.wait({answer_key(ranks[peer])}, Milliseconds(1))) throw Failure(kGivesUp);
  }

  void accept(const Deadline& deadline, int own) {
    wait_readable(listener.fd, deadline, [this] { check_nobody_gave_up(); });
    Socket socket(::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.fd < 0) refuse("accept");
    check_user(socket.fd);
    int peer = -1;
    auto file = receive_greeting(socket.fd, name, peer, deadline);
    if (peer <= position || peer >= static_cast<int>(ranks.size()) || sockets[peer].fd >= 0) throw Failure("a rank connected twice");
    send_greeting(socket.fd, position, name, own);
    sockets[peer] = std::move(socket);
    map(peer, std::move(file));
  }

  void map(int peer, Socket file) {
    segments[peer] = std::make_unique<Segment>(file.fd, static_cast<size_t>(size), arena->segment().page(), false);
    file.fd = -1;
    if (segments[peer]->end() != arena->segment().end()) throw Failure("the ranks' memory files differ in size");
  }

  // Peers that wait for this rank see the connection closed, and publish their answers, too.
  void hang_up() {
    listener = Socket();
    sockets.clear();
  }

  std::unique_ptr<Members> members() {
    std::vector<int> fds;
    for (auto& socket : sockets) fds.push_back(std::exchange(socket.fd, -1));
    return std::make_unique<Members>(position, arena, std::move(segments), std::move(fds), ranks);
  }
};

// Returns the first rank that runs another program, -1 if all have published their places.
int wait_for_places(Keys& keys, int size, const Deadline& deadline, const std::function<bool(int)>& foreign) {
  for (;;) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline.at - Clock::now());
    const auto time = std::max(Milliseconds(1), foreign ? std::min(left, kSlice) : left);
    if (keys.wait(all(size, place_key), time)) return -1;
    for (int rank = 0; foreign && rank < size; ++rank)
      if (foreign(rank) && !keys.wait({place_key(rank)}, Milliseconds(1))) return rank;
    if (Clock::now() >= deadline.at)
      throw Failure("Timed out waiting " + std::to_string(deadline.given.count()) + "ms for all ranks to come");
  }
}

Met no(std::string reason) {
  Met met;
  met.reason = std::move(reason);
  return met;
}

} // namespace

Met shm::meet(Keys& keys, int rank, int size, const Request& request, Milliseconds timeout, const std::function<bool(int)>& foreign) {
  const auto deadline = Deadline::in(timeout);
  Meeting meeting{keys, rank, size, {}, {}, {}, {}, {}, {}, {}};
  try {
    meeting.prepare(request.host, request.page);
  } catch (const std::runtime_error& failure) {
    keys.set(place_key(rank), failure.what());
  }
  const int other = wait_for_places(keys, size, deadline, foreign);
  if (other >= 0) return no("rank " + std::to_string(other) + " is another program, which talks through Gloo only");
  meeting.read_places();
  auto hosts = meeting.hosts();
  auto reason = meeting.why_not(hosts, request.reach);
  if (!reason.empty()) return no(std::move(reason));
  try {
    meeting.connect(hosts, deadline);
    keys.set(answer_key(rank), request.compares ? kYesAndCompares : kYes);
  } catch (const std::runtime_error& failure) {
    meeting.hang_up();
    keys.set(answer_key(rank), failure.what());
  }
  if (!keys.wait(all(size, answer_key), std::max(Milliseconds(1), std::chrono::duration_cast<Milliseconds>(deadline.at - Clock::now()))))
    throw Failure("Timed out waiting " + std::to_string(deadline.given.count()) + "ms for all ranks to share their memory");
  bool all_compare = true;
  const auto answers = keys.get(all(size, answer_key));
  for (int peer = 0; peer < size; ++peer) {
    const auto& answer = answers[peer];
    if (answer == kYes) all_compare = false;
    else if (answer != kYesAndCompares && (answer != kGivesUp || reason.empty())) reason = "rank " + std::to_string(peer) + ": " + answer;
  }
  if (!reason.empty()) return no(std::move(reason));
  reason = "all ranks are on one host";
  if (hosts.size() > 1) reason = std::to_string(hosts.size()) + " hosts: memory within each, Gloo between them";
  std::vector<std::string> names;
  for (const auto& place : meeting.places) names.push_back(place.name);
  return {all_compare, meeting.members(), std::move(hosts), std::move(names), std::move(reason)};
}
