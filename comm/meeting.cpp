#include "comm/meeting.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "comm/awake_time.h"
#include "comm/sha256.h"

namespace hebb {
namespace {

constexpr int kVersion = 2;  // of the frames

Json frame_of(const char* kind) { return Json::object({{"kind", kind}}); }

/// A frame of that kind. Errors: CommError.
const Json& expect(const Json& frame, std::string_view kind) {
  if (frame_kind(frame) != kind) {
    throw CommError("control connection", "a frame " + frame_kind(frame) + " (expected " + std::string(kind) + ")");
  }
  return frame;
}

Json nonce_frame(const char* kind, const std::string& nonce) {
  Json frame = frame_of(kind);
  frame.set("hebb", kVersion);
  frame.set("nonce", nonce);
  return frame;
}

/// The nonce of a frame of that kind. Errors: CommError.
const std::string& read_nonce(const Json& frame, const char* kind) {
  frame_integer(expect(frame, kind), "hebb", kVersion, kVersion);
  const std::string& nonce = frame_text(frame, "nonce");
  if (nonce.size() != 64) { throw CommError("control connection", "a nonce of another length"); }
  return nonce;
}

std::string both(const MeetingOptions& options, const std::string& of_folder) {
  return options.secret + "\n" + of_folder;
}

/// Rank 0: serves connections until every rank has come.
class Server {
 public:
  explicit Server(const MeetingOptions& options)
      : options_(options),
        file_(rendezvous_path(options.folder, options.launch)),
        here_(static_cast<size_t>(options.agreement.size)),
        members_(static_cast<size_t>(options.agreement.size)) {
    members_[0] = options.self;
  }
  ~Server() {
    std::error_code ignored;
    if (is_own_file()) { fs::remove(file_, ignored); }
    if (made_folder_ && !is_met_) { fs::remove(options_.folder, ignored); }  // only if it is empty
  }

  ControlLinks run() {
    try {
      open();
      while (!missing().empty()) { serve(); }
      listener_.close();
      strangers_.clear();
      return welcome();
    } catch (const Error& error) {
      for (const auto& connection : here_) {
        if (connection != nullptr) { connection->send(refusal(error.what(), error.code(), true)); }
      }
      throw;
    }
  }

 private:
  /// A connection that has not become that of a rank.
  struct Stranger {
    std::unique_ptr<FrameConnection> connection;
    double deadline = 0;
    std::string nonce;  // sent
    int rank = -1;      // that it says it is
    bool is_proven = false;
  };

  bool is_own_file() const {
    const auto found = read_rendezvous(file_);
    return found && found->secret == rendezvous_.secret;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t r = 1; r < here_.size(); ++r) {
      if (here_[r] == nullptr) { ranks.push_back(static_cast<int>(r)); }
    }
    return ranks;
  }

  void open() {
    std::error_code error;
    made_folder_ = fs::create_directories(options_.folder, error);
    if (error) { throw CheckpointError(options_.folder.string(), "cannot be made: " + error.message()); }
    remove_left_rendezvous(options_.folder);
    rendezvous_.secret = make_secret();
    if (options_.is_one_host) {
      listen({{"lo", "127.0.0.1"}}, "127.0.0.1", 0);
    } else if (!options_.address.empty()) {
      listen({}, options_.address, options_.port);
    } else {
      const std::vector<InterfaceAddress> addresses = interface_addresses(options_.interface);
      if (addresses.empty()) { throw CommError("network interfaces", "none that other hosts could reach is up"); }
      listen(addresses, addresses.size() == 1 ? addresses[0].address : "0.0.0.0", 0);
    }
    held_ = write_rendezvous(file_, rendezvous_);
  }

  void listen(std::vector<InterfaceAddress> addresses, const std::string& at, int port) {
    listener_ = listen_at(resolve(at, port).front());
    const Endpoint bound = local_endpoint(listener_);
    rendezvous_.port = bound.port();
    if (addresses.empty()) { addresses.push_back({"", bound.host()}); }
    rendezvous_.addresses = std::move(addresses);
  }

  /// One round: waits for something to happen, and takes it.
  void serve() {
    const double now = time_.now();
    if (now >= options_.init_seconds) {
      throw CommError("meeting", missing_text("did not come within " + seconds_text(options_.init_seconds)));
    }
    if (now >= notice_at_) {
      notice_at_ = options_.init_seconds;
      if (options_.notice) { options_.notice(missing_text("have not come yet")); }
    }
    if (now >= next_look_) {  // another start in this folder may have removed it
      next_look_ = now + 1;
      if (!fs::exists(file_)) { held_ = write_rendezvous(file_, rendezvous_); }
    }
    std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
    for (const Stranger& s : strangers_) { polled.push_back(s.connection->polled()); }
    for (const auto& c : here_) {
      if (c != nullptr) { polled.push_back(c->polled()); }
    }
    ::poll(polled.data(), polled.size(), 50);
    accept_strangers();
    for (Stranger& s : strangers_) { listen_to(s); }
    std::erase_if(strangers_, [](const Stranger& s) { return s.connection == nullptr || !s.connection->is_open(); });
    for (auto& rank : here_) {
      if (rank == nullptr) { continue; }
      rank->flush();
      rank->receive();
      if (!rank->is_open()) { rank = nullptr; }  // it may come again
    }
  }

  void accept_strangers() {
    const size_t most = std::max<size_t>(256, 2 * here_.size());
    std::string peer;
    for (;;) {
      Socket socket = accept_from(listener_, peer);
      if (!socket.is_open()) { return; }
      if (strangers_.size() >= most) { strangers_.erase(strangers_.begin()); }  // the one that waits longest
      Stranger s{std::make_unique<FrameConnection>(std::move(socket), peer, kLargestHello),
                 time_.now() + options_.hello_seconds, make_secret()};
      s.connection->send(nonce_frame("nonce", s.nonce));
      strangers_.push_back(std::move(s));
    }
  }

  void listen_to(Stranger& s) {
    s.connection->flush();
    s.connection->receive();
    try {
      while (s.connection != nullptr) {
        const std::optional<Json> frame = s.connection->next();
        if (!frame) { break; }
        take(s, *frame);
      }
    } catch (const CommError& error) {
      note(error.what());
      s.connection->close();
    }
    if (s.connection != nullptr && time_.now() >= s.deadline) { s.connection->close(); }
  }

  /// A hello, which anybody can send; a proof; then what the rank says about itself.
  void take(Stranger& s, const Json& frame) {
    if (s.rank < 0) {
      const std::string nonce = read_nonce(frame, "hello");
      s.rank = static_cast<int>(frame_integer(frame, "rank", 1, kMostRanks));
      const SessionKeys keys =
          session_keys(both(options_, rendezvous_.secret), options_.launch, s.rank, nonce, s.nonce);
      s.connection->set_keys(keys.from_first, keys.to_first);
    } else if (!s.is_proven) {
      expect(frame, "proof");
      s.is_proven = true;
      s.connection->set_limit(kLargestFrame);
      s.connection->send(frame_of("proof"));
    } else {
      take_member(s, expect(frame, "member"));
    }
  }

  void take_member(Stranger& s, const Json& frame) {
    const Member member = read_member(frame);
    const Agreement agreement = read_agreement(frame.find("agreement"));
    if (member.rank != s.rank) { throw CommError("control connection", "a rank that says it is another"); }
    std::string differs = difference(options_.self, options_.agreement, member, agreement);
    if (differs.empty()) { differs = shared_gpu(member); }
    if (!differs.empty()) {
      refuse(*s.connection, differs, ExitCode::kUsage);
      throw ConfigError("meeting", differs);
    }
    const size_t rank = static_cast<size_t>(member.rank);
    if (here_[rank] != nullptr) {
      const std::string twice = member.name() + " is " + members_[rank].name() + " already";
      note(twice);
      return refuse(*s.connection, twice, ExitCode::kComm);
    }
    members_[rank] = member;
    here_[rank] = std::move(s.connection);
  }

  std::string shared_gpu(const Member& member) const {
    for (size_t r = 0; r < here_.size(); ++r) {
      const Member& other = members_[r];
      const bool is_here = (r == 0 || here_[r] != nullptr) && other.rank != member.rank;
      if (is_here && !member.gpu_id.empty() && member.gpu_id == other.gpu_id && member.host == other.host) {
        return other.name() + " and " + member.name() + " use the same GPU, " + member.gpu_id;
      }
    }
    return "";
  }

  static Json refusal(const std::string& reason, ExitCode code, bool is_shared) {
    return Json::object(
        {{"kind", "refuse"}, {"text", reason}, {"code", static_cast<int>(code)}, {"shared", is_shared ? 1 : 0}});
  }
  static void refuse(FrameConnection& connection, const std::string& reason, ExitCode code) {
    connection.send(refusal(reason, code, false));
    connection.close();
  }

  ControlLinks welcome() {
    ControlLinks links;
    links.ids = options_.make_ids ? options_.make_ids() : "";
    Json members = Json::array();
    for (const Member& m : members_) { members.push(member_json(m)); }
    const Json frame = Json::object({{"kind", "welcome"}, {"members", members}, {"ids", links.ids}});
    for (size_t r = 1; r < here_.size(); ++r) { here_[r]->send(frame); }
    is_met_ = true;
    links.made_folder = made_folder_;
    links.members = members_;
    links.connections = std::move(here_);
    return links;
  }

  std::string missing_text(const std::string& what) const {
    const std::vector<int> ranks = missing();
    std::string came;
    for (size_t r = 0; r < here_.size(); ++r) {
      if (r == 0 || here_[r] != nullptr) { came += (came.empty() ? "" : ", ") + members_[r].name(); }
    }
    std::string text =
        fmt::format("{}{} of {:d} {}; here: {}; they look for {}", ranks.size() == 1 ? "rank " : "ranks ",
                    rank_list(ranks), here_.size(), what, came, file_.string());
    for (const auto& [note, count] : notes_) {
      text += "; " + note + (count > 1 ? fmt::format(" ({:d} times)", count) : "");
    }
    return text;
  }

  void note(const std::string& what) {
    if (notes_.size() < 20 || notes_.count(what) > 0) { ++notes_[what]; }  // strangers must not fill the memory
  }

  const MeetingOptions& options_;
  const fs::path file_;
  std::vector<std::unique_ptr<FrameConnection>> here_;  // by rank
  std::vector<Member> members_;
  AwakeTime time_{5, options_.clock};
  double notice_at_ = options_.notice_seconds, next_look_ = 1;
  Socket listener_;
  Rendezvous rendezvous_;
  Descriptor held_;  // the file of the rendezvous
  std::vector<Stranger> strangers_;
  std::map<std::string, int> notes_;  // what went wrong, how often
  bool made_folder_ = false, is_met_ = false;
};

/// Another rank: looks for rank 0 until it is welcome.
class Client {
 public:
  explicit Client(const MeetingOptions& options)
      : options_(options), file_(rendezvous_path(options.folder, options.launch)) {}

  ControlLinks run() {
    for (;;) {
      if (time_.now() >= options_.init_seconds) {
        throw CommError(options_.self.name(), "cannot reach rank 0 within " + seconds_text(options_.init_seconds) +
                                                  " (" + last_error() + ")");
      }
      if (time_.now() >= notice_at_) {
        notice_at_ = options_.init_seconds;
        if (options_.notice) { options_.notice(options_.self.name() + " has not reached rank 0 yet: " + last_error()); }
      }
      if (const auto found = read_rendezvous(file_)) {
        for (const InterfaceAddress& a : found->addresses) {
          if (auto links = try_at(a, found->port, found->secret)) { return std::move(*links); }
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

 private:
  std::string last_error() const {
    if (!last_error_.empty()) { return last_error_; }
    return "no file " + file_.string() + " of rank 0; all ranks share the run folder";
  }

  std::optional<ControlLinks> try_at(const InterfaceAddress& at, int port, const std::string& secret) {
    try {
      const Endpoint endpoint = resolve(at.address, port).front();
      const std::string where = endpoint.text() + (at.interface.empty() ? "" : " (" + at.interface + ")");
      std::string error;
      Socket socket = connect_to(endpoint, 3, error);
      if (!socket.is_open()) { throw CommError(where, error); }
      auto connection = std::make_unique<FrameConnection>(std::move(socket), where, kLargestHello);
      const double deadline = time_.now() + options_.hello_seconds;
      prove(*connection, secret, deadline);
      expect(wait_for(*connection, deadline), "proof");
      connection->set_limit(kLargestFrame);
      Json member = member_json(options_.self);
      member.set("kind", "member");
      member.set("agreement", agreement_json(options_.agreement));
      connection->send(member);
      // Rank 0 gives up first, and then says why.
      const Json answer = wait_for(*connection, options_.init_seconds + 5);
      if (frame_kind(answer) == "refuse") { end_refused(answer); }
      ControlLinks links{.members = read_members(expect(answer, "welcome"), options_.agreement.size),
                         .ids = frame_text(answer, "ids"),
                         .connections = {}};
      links.connections.push_back(std::move(connection));
      return links;
    } catch (const CommError& noise) {  // of somebody else, of an earlier start, of a network that is not up
      last_error_ = noise.what();
      return std::nullopt;
    }
  }

  void prove(FrameConnection& connection, const std::string& secret, double deadline) {
    const std::string theirs = read_nonce(wait_for(connection, deadline), "nonce"), nonce = make_secret();
    Json hello = nonce_frame("hello", nonce);
    hello.set("rank", options_.self.rank);
    connection.send(hello);
    const SessionKeys keys = session_keys(both(options_, secret), options_.launch, options_.self.rank, nonce, theirs);
    connection.set_keys(keys.to_first, keys.from_first);
    connection.send(frame_of("proof"));
  }

  /// The next frame. Errors: CommError where none comes.
  Json wait_for(FrameConnection& connection, double deadline) {
    for (;;) {
      connection.flush();
      connection.receive();
      if (std::optional<Json> frame = connection.next()) { return std::move(*frame); }
      if (!connection.is_open()) { throw CommError(connection.peer(), "the connection was closed"); }
      if (time_.now() >= deadline) { throw CommError(connection.peer(), "no answer"); }
      pollfd wait = connection.polled();
      ::poll(&wait, 1, 50);
    }
  }

  [[noreturn]] static void end_refused(const Json& frame) {
    const ExitCode code = static_cast<ExitCode>(frame_exit_code(frame));
    const std::string& text = frame_text(frame, "text");
    if (frame_integer(frame, "shared") != 0) { throw OtherRankError(code, text); }
    throw Error(code, "meeting: rank 0 refuses this process: " + text);
  }

  const MeetingOptions& options_;
  const fs::path file_;
  AwakeTime time_{5, options_.clock};
  double notice_at_ = options_.notice_seconds;
  std::string last_error_;
};

}  // namespace

SessionKeys session_keys(const std::string& secret, const std::string& launch, int rank, const std::string& nonce,
                         const std::string& nonce_of_first) {
  const auto key = [&](const char* direction) {
    return hmac_sha256(secret, fmt::format("hebb {} {:d} {} {} {}", direction, rank, nonce, nonce_of_first, launch));
  };
  return {.to_first = key("to"), .from_first = key("from")};
}

ControlLinks meet(const MeetingOptions& options) {
  const int size = options.agreement.size, rank = options.self.rank;
  HEBB_ASSERT(size > 1 && rank >= 0 && rank < size);
  return rank == 0 ? Server(options).run() : Client(options).run();
}

}  // namespace hebb
