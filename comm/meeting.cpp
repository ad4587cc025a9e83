#include "comm/meeting.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "comm/meeting_text.h"
#include "core/elapsed.h"

namespace hebb {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostStrangers = 256;  // connections without a hello

Clock::time_point after(double seconds) { return Clock::now() + duration_of(seconds); }
void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

fs::path nonce_path(const MeetingOptions& options) {
  fs::path path = rendezvous_path(options.folder, options.launch);
  return path.replace_extension(".nonce");
}

/// Rank 0: serves connections until every rank has said hello.
class Server {
 public:
  explicit Server(const MeetingOptions& options)
      : options_(options),
        here_(static_cast<size_t>(options.size)),
        deadline_(after(options.init_seconds)),
        is_ready_(static_cast<size_t>(options.size)) {
    members_.resize(static_cast<size_t>(options.size));
    members_[0] = options.self;
  }
  ~Server() {
    std::error_code ignored;
    if (is_by_file()) { fs::remove(rendezvous_path(options_.folder, options_.launch), ignored); }
    fs::remove(nonce_path(options_), ignored);
    if (made_folder_ && !is_met_) { fs::remove(options_.folder, ignored); }  // only if it is empty
  }

  ControlLinks run() {
    try {
      open();
      while (!missing().empty()) { serve("did not come"); }
      listener_.close();
      strangers_.clear();
      return welcome();
    } catch (const Error& error) {
      refuse_all(error);
      throw;
    }
  }

 private:
  struct Stranger {
    std::unique_ptr<FrameConnection> connection;
    Clock::time_point deadline;
  };

  bool is_by_file() const { return options_.address.empty(); }
  /// The ranks that the present phase waits for.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t r = 1; r < here_.size(); ++r) {
      if (is_welcomed_ ? !is_ready_[r] : here_[r] == nullptr) { ranks.push_back(static_cast<int>(r)); }
    }
    return ranks;
  }

  void open() {
    made_folder_ = fs::create_directories(options_.folder);
    if (!is_by_file()) {
      token_ = options_.token;
      listener_ = listen_at(resolve(options_.address, options_.port).front());
      return;
    }
    remove_other_rendezvous(options_.folder, options_.launch);
    token_ = make_token();
    std::vector<InterfaceAddress> addresses{{"lo", "127.0.0.1"}};
    if (!options_.is_one_host) { addresses = interface_addresses(options_.interface); }
    if (addresses.empty()) { throw CommError("network interfaces", "none that other hosts could reach is up"); }
    const bool is_single = addresses.size() == 1;
    listener_ = listen_at(resolve(is_single ? addresses[0].address : "0.0.0.0", 0).front());
    const int port = local_endpoint(listener_).port();
    write_rendezvous(rendezvous_path(options_.folder, options_.launch), {addresses, port, token_});
  }

  /// One round: waits for something to happen, and takes it. what: missing ranks did not do.
  void serve(const char* what) {
    if (Clock::now() >= deadline_) {
      throw CommError("meeting", missing_text(options_, members_, missing(), what, notes_));
    }
    std::vector<pollfd> polled;
    if (listener_.is_open()) { polled.push_back({listener_.fd(), POLLIN, 0}); }
    for (const Stranger& s : strangers_) { polled.push_back(s.connection->polled()); }
    for (const auto& c : here_) {
      if (c != nullptr) { polled.push_back(c->polled()); }
    }
    ::poll(polled.data(), polled.size(), 50);
    accept_strangers();
    listen_to_strangers();
    for (size_t r = 1; r < here_.size(); ++r) {
      if (here_[r] != nullptr && !is_ready_[r]) { listen_to(r); }  // what follows `ready` is the watch's
    }
  }

  void accept_strangers() {
    std::string peer;
    while (listener_.is_open()) {
      Socket socket = accept_from(listener_, peer);
      if (!socket.is_open()) { return; }
      if (strangers_.size() >= kMostStrangers) { strangers_.erase(strangers_.begin()); }  // the one that waits longest
      strangers_.push_back(
          {std::make_unique<FrameConnection>(std::move(socket), peer, kLargestHello), after(options_.hello_seconds)});
    }
  }

  void listen_to_strangers() {
    for (Stranger& s : strangers_) {
      s.connection->receive();
      std::optional<Json> hello;
      try {
        hello = s.connection->next();
        if (hello) { take_hello(s.connection, *hello); }
      } catch (const CommError& error) {
        note(error.what());
        s.connection->close();
      }
      if (s.connection != nullptr && Clock::now() >= s.deadline) { s.connection->close(); }
    }
    std::erase_if(strangers_, [](const Stranger& s) { return s.connection == nullptr || !s.connection->is_open(); });
  }

  void take_hello(std::unique_ptr<FrameConnection>& connection, const Json& hello) {
    const Hello said = read_hello(hello);
    if (!equal_tokens(said.token, token_)) { return refuse(*connection, "wrong token", 0); }
    if (said.launch != options_.launch) { return refuse(*connection, "another launch", 0); }
    const Member& member = said.member;
    std::string differs = difference(options_, said);
    if (differs.empty()) { differs = shared_gpu(member); }
    if (!differs.empty()) {
      refuse(*connection, differs, static_cast<int>(ExitCode::kUsage));
      throw ConfigError("meeting", differs);
    }
    const size_t rank = static_cast<size_t>(member.rank);
    if (rank == 0 || here_[rank] != nullptr) {
      const std::string twice = member.name() + " is " + members_[rank].name() + " already";
      note(twice);
      return refuse(*connection, twice, static_cast<int>(ExitCode::kComm));
    }
    members_[rank] = member;
    here_[rank] = std::move(connection);
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

  static Json refusal(const std::string& reason, int code, bool is_shared) {
    return Json::object({{"kind", "refuse"}, {"reason", reason}, {"code", code}, {"shared", is_shared}});
  }
  static void refuse(FrameConnection& connection, const std::string& reason, int code) {
    connection.send(refusal(reason, code, false));
    connection.close();
  }

  /// A rank that waits for its welcome, or answers it.
  void listen_to(size_t rank) {
    FrameConnection& connection = *here_[rank];
    connection.flush();
    connection.receive();
    try {
      while (!is_ready_[rank]) {
        const std::optional<Json> frame = connection.next();
        if (!frame) { break; }
        take_answer(rank, *frame);
      }
    } catch (const CommError& error) {
      note(error.what());
      connection.close();
    }
    if (connection.is_open() || is_ready_[rank] || failed_) { return; }
    if (is_welcomed_) { throw CommError(members_[rank].name(), "lost while ranks met: its connection closed"); }
    here_[rank] = nullptr;  // it may come again
  }

  void take_answer(size_t rank, const Json& frame) {
    if (is_welcomed_ && frame_kind(frame) == "ready") {
      is_ready_[rank] = true;
    } else if (is_welcomed_ && frame_kind(frame) == "fail") {
      failed_ = OtherRankError(static_cast<ExitCode>(frame_integer(frame, "code")), frame_text(frame, "text"));
    } else {
      throw CommError("control connection", "unexpected frame " + frame_kind(frame));
    }
  }

  ControlLinks welcome() {
    const std::string nonce = make_token();
    write_file_atomic(nonce_path(options_), nonce);
    ControlLinks links;
    links.ids = options_.make_ids ? options_.make_ids() : "";
    Json members = Json::array();
    for (const Member& m : members_) { members.push(member_json(m)); }
    const Json frame = Json::object({{"kind", "welcome"}, {"members", members}, {"ids", links.ids}, {"nonce", nonce}});
    is_welcomed_ = true;
    for (size_t r = 1; r < here_.size(); ++r) {
      here_[r]->set_limit(kLargestFrame);
      here_[r]->send(frame);
    }
    while (!missing().empty()) {
      serve("did not answer");
      if (failed_) { throw OtherRankError(*failed_); }
    }
    is_met_ = true;
    links.made_folder = made_folder_;
    links.members = members_;
    links.connections = std::move(here_);
    return links;
  }

  void refuse_all(const Error& error) {
    for (const auto& connection : here_) {
      if (connection != nullptr) { connection->send(refusal(error.what(), static_cast<int>(error.code()), true)); }
    }
  }

  void note(const std::string& what) {
    if (notes_.size() < 20 || notes_.count(what) > 0) { ++notes_[what]; }  // strangers must not fill the memory
  }

  const MeetingOptions& options_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<FrameConnection>> here_;  // by rank
  Clock::time_point deadline_;
  Socket listener_;
  std::string token_;
  std::vector<Stranger> strangers_;
  std::map<std::string, int> notes_;  // what went wrong, how often
  bool is_welcomed_ = false, made_folder_ = false, is_met_ = false;
  std::vector<bool> is_ready_;
  std::optional<OtherRankError> failed_;
};

/// Another rank: looks for rank 0 until it is welcome.
class Client {
 public:
  explicit Client(const MeetingOptions& options) : options_(options), deadline_(after(options.init_seconds)) {}

  ControlLinks run() {
    for (;;) {
      if (Clock::now() >= deadline_) {
        throw CommError(options_.self.name(), "cannot reach rank 0 within " + seconds_text(options_.init_seconds) +
                                                  " (" + (last_error_.empty() ? no_file() : last_error_) + ")");
      }
      for (const auto& [endpoint, interface] : endpoints()) {
        if (auto links = try_at(endpoint, interface)) { return std::move(*links); }
      }
      pause();
    }
  }

 private:
  struct Target {
    Endpoint endpoint;
    std::string interface;
  };

  std::string no_file() const {
    return "no file " + rendezvous_path(options_.folder, options_.launch).string() + " of rank 0";
  }

  std::vector<Target> endpoints() {
    std::vector<Target> found;
    const auto add = [&](const std::string& address, int port, const std::string& interface) {
      try {
        for (const Endpoint& e : resolve(address, port)) { found.push_back({e, interface}); }
      } catch (const CommError& error) { last_error_ = error.what(); }
    };
    if (!options_.address.empty()) {
      token_ = options_.token;
      add(options_.address, options_.port, "");
    } else if (const auto file = read_rendezvous(rendezvous_path(options_.folder, options_.launch))) {
      token_ = file->token;
      for (const InterfaceAddress& a : file->addresses) { add(a.address, file->port, a.interface); }
    }
    return found;
  }

  std::optional<ControlLinks> try_at(const Endpoint& endpoint, const std::string& interface) {
    std::string error;
    Socket socket = connect_to(endpoint, 3, error);
    const std::string where = endpoint.text() + (interface.empty() ? "" : " (" + interface + ")");
    if (!socket.is_open()) {
      last_error_ = where + ": " + error;
      return std::nullopt;
    }
    auto connection = std::make_unique<FrameConnection>(std::move(socket), where, kLargestFrame);
    connection->send(hello_frame(options_, token_));
    // Rank 0 gives up first, and then says why.
    const Clock::time_point last = deadline_ + std::chrono::seconds(5);
    while (connection->is_open() && Clock::now() < last) {
      pollfd wait = connection->polled();
      ::poll(&wait, 1, 100);
      connection->flush();
      connection->receive();
      try {
        if (const std::optional<Json> frame = connection->next()) { return take_answer(connection, *frame); }
      } catch (const CommError& noise) {
        last_error_ = where + ": " + noise.what();
        return std::nullopt;
      }
    }
    last_error_ = where + ": " + (connection->is_open() ? "no answer" : "the connection was closed");
    return std::nullopt;
  }

  std::optional<ControlLinks> take_answer(std::unique_ptr<FrameConnection>& connection, const Json& frame) {
    if (frame_kind(frame) == "refuse") {
      const int code = static_cast<int>(frame_integer(frame, "code"));
      const std::string& reason = frame_text(frame, "reason");
      last_error_ = connection->peer() + ": refused: " + reason;
      const Json* shared = frame.find("shared");
      if (code != 0 && shared != nullptr && *shared == Json(true)) {
        throw OtherRankError(static_cast<ExitCode>(code), reason);
      }
      if (code != 0) { throw Error(static_cast<ExitCode>(code), "meeting: rank 0 refuses this process: " + reason); }
      return std::nullopt;
    }
    if (frame_kind(frame) != "welcome") { throw CommError("control connection", "unexpected frame"); }
    ControlLinks links{
        .members = read_members(frame, options_.size), .ids = frame_text(frame, "ids"), .connections = {}};
    check_folder(*connection, frame_text(frame, "nonce"));
    connection->send(Json::object({{"kind", "ready"}}));
    links.connections.push_back(std::move(connection));
    return links;
  }

  /// Network file systems may show a new file late.
  void check_folder(FrameConnection& connection, const std::string& nonce) const {
    const fs::path path = nonce_path(options_);
    const Clock::time_point last = after(std::min(10.0, options_.init_seconds / 2));
    while (Clock::now() < last) {
      try {
        if (read_file(path) == nonce) { return; }
      } catch (const Error&) {}
      pause();
    }
    const std::string text = options_.self.name() + ": " + options_.folder.string() +
                             ": is not the run folder of rank 0 (expected one folder that all ranks share)";
    connection.send(
        Json::object({{"kind", "fail"}, {"code", static_cast<int>(ExitCode::kCheckpoint)}, {"text", text}}));
    throw CheckpointError("", text);
  }

  const MeetingOptions& options_;
  Clock::time_point deadline_;
  std::string token_, last_error_;
};

}  // namespace

ControlLinks meet(const MeetingOptions& options) {
  HEBB_ASSERT(options.size > 1 && options.self.rank >= 0 && options.self.rank < options.size);
  return options.self.rank == 0 ? Server(options).run() : Client(options).run();
}

}  // namespace hebb
