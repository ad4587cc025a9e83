// The ranks of a run find each other over loopback, whatever strangers do meanwhile.
#include "comm/meeting.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "comm/sha256.h"
#include "tests/longer_limits.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

/// Time that stands still until a test lets it pass: by itself no limit expires.
struct Time {
  std::atomic<double> now{0};

  std::function<double()> clock() {
    return [this] { return now.load(); };
  }
};
constexpr double kLongStep = 5;  // more of a step does not count (AwakeTime)

/// Time that goes on by a step whenever it is read, so that a limit is a number of rounds.
std::function<double()> clock_of_steps(double step) {
  return [now = 0.0, step]() mutable { return now += step; };
}

MeetingOptions options_of(const TempFolder& folder, int rank, int size) {
  MeetingOptions options;
  options.self = this_member(rank);
  options.self.device = "cpu";
  options.agreement = {size, "b1", "mpi 4", Json::object({{"train", Json::object({{"steps", 10}})}})};
  options.launch = "job7";
  options.folder = folder.path();
  options.is_one_host = true;
  options.init_seconds = 600;
  return options;
}

std::vector<MeetingOptions> all_of(const TempFolder& folder, int size) {
  std::vector<MeetingOptions> all;
  for (int r = 0; r < size; ++r) { all.push_back(options_of(folder, r, size)); }
  return all;
}

Socket listen_here() { return listen_at(resolve("127.0.0.1", 0).front()); }
int port_of(const Socket& socket) { return local_endpoint(socket).port(); }

struct Outcome {
  std::unique_ptr<ControlLinks> links;
  std::string error;
  int code = 0;
  bool is_of_other = false;
};

Outcome meet_one(const MeetingOptions& options) {
  Outcome outcome;
  try {
    outcome.links = std::make_unique<ControlLinks>(meet(options));
  } catch (const Error& error) {
    outcome.error = error.what();
    outcome.code = static_cast<int>(error.code());
    outcome.is_of_other = dynamic_cast<const OtherRankError*>(&error) != nullptr;
  }
  return outcome;
}

std::vector<Outcome> meet_all(const std::vector<MeetingOptions>& options) {
  std::vector<Outcome> outcomes(options.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < options.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = meet_one(options[i]); });
  }
  for (std::thread& thread : threads) { thread.join(); }
  return outcomes;
}

bool all_met(const std::vector<Outcome>& outcomes) {
  for (const Outcome& o : outcomes) {
    UNSCOPED_INFO(o.error);
    if (o.links == nullptr || o.links->members.size() != outcomes.size()) { return false; }
  }
  return true;
}

/// Where rank 0 listens, as soon as it has written it.
Rendezvous rendezvous_of(const fs::path& folder) {
  for (;;) {
    if (const auto found = read_rendezvous(rendezvous_path(folder, "job7"))) { return *found; }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Socket connect_here(int port) {
  std::string error;
  return connect_to(resolve("127.0.0.1", port).front(), 600, error);
}

void write_all(const Socket& socket, const std::string& bytes) {
  [[maybe_unused]] const ssize_t n = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Whether the other end has closed a connection; what it has sent before is dropped.
bool is_closed(const Socket& socket) {
  char bytes[4096];
  ssize_t n = 1;
  while (n > 0) { n = ::recv(socket.fd(), bytes, sizeof bytes, MSG_DONTWAIT); }
  return n == 0 || errno == ECONNRESET;
}

/// A peer that speaks the protocol as far as a test wants.
class Probe {
 public:
  explicit Probe(int port) : connection_(connect_here(port), "", kLargestFrame) {}
  FrameConnection& connection() { return connection_; }
  /// The next frame; null where the connection was closed before one came.
  Json next() {
    for (;;) {
      connection_.flush();
      connection_.receive();
      if (std::optional<Json> frame = connection_.next()) { return *frame; }
      if (!connection_.is_open()) { return {}; }
      pollfd wait = connection_.polled();
      ::poll(&wait, 1, 50);
    }
  }
  /// Says hello as `rank`, and proves a secret.
  void prove(int rank, const std::string& secret, const std::string& launch = "job7") {
    const std::string theirs = frame_text(next(), "nonce"), own = make_secret();
    connection_.send(Json::object({{"kind", "hello"}, {"hebb", 2}, {"rank", rank}, {"nonce", own}}));
    const SessionKeys keys = session_keys("\n" + secret, launch, rank, own, theirs);
    connection_.set_keys(keys.to_first, keys.from_first);
    connection_.send(Json::object({{"kind", "proof"}}));
  }
  void introduce(const Member& member, const Agreement& agreement) {
    Json frame = member_json(member);
    frame.set("kind", "member");
    frame.set("agreement", agreement_json(agreement));
    connection_.send(frame);
  }
  /// Until the system of the other end has all that was sent.
  void wait_until_delivered() {
    for (int bytes = 1; bytes > 0 && connection_.is_open(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      connection_.flush();
      REQUIRE(::ioctl(connection_.fd(), SIOCOUTQ, &bytes) == 0);
    }
  }

 private:
  FrameConnection connection_;
};

/// Ranks meet although `disturb` is done to the port of rank 0 before rank 1 comes. Rank 0's time is `time`: where it
/// stands still, ranks meet before any limit of a stranger is over.
void check_undisturbed(Time& time, const std::function<void(const Rendezvous&)>& disturb) {
  const TempFolder folder;
  std::vector<MeetingOptions> all = all_of(folder, 2);
  all[0].clock = time.clock();
  all[0].hello_seconds = kLongStep - 1;
  Outcome first;
  std::atomic<bool> is_over = false;
  std::thread rank0([&] {
    first = meet_one(all[0]);
    is_over = true;
  });
  disturb(rendezvous_of(folder.path()));
  const Outcome second = meet_one(all[1]);
  while (second.links == nullptr && !is_over) {  // nobody will come
    time.now = time.now + kLongStep;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  rank0.join();
  INFO(first.error << " / " << second.error);
  CHECK((first.links != nullptr && second.links != nullptr));
}
void check_undisturbed(const std::function<void(const Rendezvous&)>& disturb) {
  Time time;
  check_undisturbed(time, disturb);
}

}  // namespace

FOLDER_TEST("ranks meet through the run folder and know each other", "[fast][threads]") {
  std::vector<MeetingOptions> all = all_of(folder, 4);
  all[0].make_ids = [] { return "abcdef"; };
  const std::vector<Outcome> met = meet_all(all);
  REQUIRE(all_met(met));
  for (const Outcome& o : met) {
    CHECK(o.links->ids == "abcdef");
    for (int r = 0; r < 4; ++r) { CHECK(o.links->members[static_cast<size_t>(r)].rank == r); }
    CHECK(o.links->members[2].name() == all[2].self.name());
    CHECK(host_place(o.links->members, 2).local_rank == 2);
    CHECK(host_place(o.links->members, 2).local_size == 4);
  }
  CHECK((met[0].links->connections.size() == 4 && met[3].links->connections.size() == 1));
  CHECK(fs::is_empty(folder.path()));  // nothing of the meeting stays
}

FOLDER_TEST("the rendezvous file is the owner's alone and names the launch", "[fast]") {
  const fs::path path = rendezvous_path(folder.path(), "j.1");
  const Descriptor held =
      write_rendezvous(path, {.addresses = {{"lo", "127.0.0.1"}}, .port = 4711, .secret = std::string(64, 'a')});
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(path.filename() == "rendezvous.j.1.json");
  const auto read = read_rendezvous(path);
  REQUIRE(read);
  CHECK((read->port == 4711 && read->secret == std::string(64, 'a') && read->addresses[0].address == "127.0.0.1"));
  folder.write("rendezvous.other.json", "{}");
  remove_left_rendezvous(folder.path());
  CHECK((fs::exists(path) && !fs::exists(folder / "rendezvous.other.json")));
  std::ofstream(path) << "{\"port\": \"x\"}";
  CHECK(!read_rendezvous(path));
  std::ofstream(path) << R"({"addresses": [], "port": 4711, "secret": ""})";  // anybody would know it
  CHECK(!read_rendezvous(path));
}

TEST_CASE("launch ids tell attempts apart", "[fast]") {
  const auto id = [](std::map<std::string, std::string> variables) {
    return read_launch_id([&](const char* name) {
      const auto it = variables.find(name);
      return it == variables.end() ? nullptr : it->second.c_str();
    });
  };
  CHECK(id({}).empty());
  CHECK(id({{"TORCHELASTIC_RUN_ID", "a/b"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}) == "a_b.2");
  CHECK(id({{"PMIX_NAMESPACE", "17"}, {"SLURM_JOB_ID", "5"}}) == "17");
  CHECK(id({{"MASTER_PORT", "29500"}}) == "29500");
  CHECK(id({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_RESTART_COUNT", "1"}}) == "5.0.1");
}

FOLDER_TEST("after init_seconds missing ranks are named, and those that came", "[fast]") {
  std::vector<MeetingOptions> all = all_of(folder, 4);
  all.pop_back();
  all.erase(all.begin() + 1);
  std::vector<Outcome> met;
  CHECK(comes_within(1, [&](double limit) {
    all[0].init_seconds = limit;
    all[1].init_seconds = 4 * limit;  // it hears why rank 0 gave up
    met = meet_all(all);
    return met[0].error.find(all[1].self.name()) != std::string::npos && met[1].is_of_other;
  }));
  CHECK(met[0].code == 14);
  CHECK_THAT(
      met[0].error,
      Contains("ranks 1, 3 of 4 did not come within " + seconds_text(all[0].init_seconds) + "; here: rank 0 (") &&
          Contains(all[1].self.name()) && Contains("they look for " + rendezvous_path(folder.path(), "job7").string()));
  CHECK((met[1].code == 14 && met[1].is_of_other && met[1].error == met[0].error));
}

FOLDER_TEST("a rank without rank 0 says where it looked", "[fast]") {
  MeetingOptions options = options_of(folder, 1, 2);
  options.init_seconds = 0.3;
  options.clock = clock_of_steps(0.1);  // two looks at the time, a look for rank 0, and the next round is the last
  CHECK_THAT(meet_one(options).error, Contains("cannot reach rank 0 within 0.3 s (no file "));
  // A file that a killed attempt left behind: nobody listens there.
  const int port = port_of(listen_here());
  (void)write_rendezvous(rendezvous_path(folder.path(), "job7"), {{{"lo", "127.0.0.1"}}, port, std::string(64, 'a')});
  const Outcome outcome = meet_one(options);
  CHECK(outcome.code == 14);
  CHECK_THAT(outcome.error, Contains("127.0.0.1:" + std::to_string(port) + " (lo): Connection refused"));
}

FOLDER_TEST("a stale rendezvous file delays nobody", "[fast]") {
  // Nobody holds them: the descriptors are closed at once.
  (void)write_rendezvous(rendezvous_path(folder.path(), "job7"), {{{"lo", "127.0.0.1"}}, 1, std::string(64, 'a')});
  (void)write_rendezvous(rendezvous_path(folder.path(), "job6"), {{{"lo", "127.0.0.1"}}, 1, std::string(64, 'b')});
  CHECK(all_met(meet_all(all_of(folder, 3))));
  CHECK(fs::is_empty(folder.path()));
}

FOLDER_TEST("ranks that differ are named with both values", "[fast]") {
  const auto outcome = [&](const std::function<void(MeetingOptions&)>& change) {
    std::vector<MeetingOptions> all = all_of(folder, 2);
    change(all[1]);
    std::vector<Outcome> met = meet_all(all);
    CHECK((met[0].code == 2 && met[1].code == 2));
    return met[0].error;
  };
  const std::string name0 = this_member(0).name(), name1 = this_member(1).name();
  CHECK(outcome([](MeetingOptions& o) { o.agreement.build = "b2"; }) ==
        "meeting: build: " + name0 + " has b1, " + name1 + " has b2");
  CHECK(outcome([](MeetingOptions& o) {
          o.agreement.config = Json::object({{"train", Json::object({{"steps", 20}, {"seed", 1}})}});
        }) == "meeting: configuration: " + name0 + " and " + name1 +
                  " differ in train.steps (10, 20), train.seed (absent, 1)");
  CHECK_THAT(outcome([](MeetingOptions& o) { o.agreement.library = "mpi 5"; }), Contains("communication library"));
  CHECK_THAT(outcome([](MeetingOptions& o) { o.agreement.config.set("note", std::string(2000000, 'x')); }),
             Contains("differ in their configurations"));  // too long to be sent
  CHECK_THAT(outcome([](MeetingOptions& o) { o.agreement.size = 3; }),
             Contains("number of ranks: " + name0 + " has 2, " + name1 + " has 3"));
  const auto on_one_gpu = [&] {
    std::vector<MeetingOptions> all = all_of(folder, 2);
    for (MeetingOptions& o : all) { o.self.gpu_id = "GPU-1"; }
    return meet_all(all)[0].error;
  };
  CHECK(on_one_gpu() == "meeting: " + name0 + " and " + name1 + " use the same GPU, GPU-1");
  std::vector<MeetingOptions> all = all_of(folder, 3);
  for (size_t r = 0; r < 3; ++r) { all[r].self.gpu_id = "GPU-" + std::to_string(r); }
  CHECK(all_met(meet_all(all)));
  all[2].self.gpu_id = "GPU-1";
  const std::string between = meet_all(all)[0].error;  // whichever of the two comes first
  CHECK_THAT(between, Contains("rank 1 (") && Contains("rank 2 (") && Contains("use the same GPU, GPU-1"));
  all[2].self.host = "another";
  CHECK(all_met(meet_all(all)));
}

FOLDER_TEST("a second process with the same rank is refused and named, and the run goes on", "[fast][threads]") {
  const std::vector<MeetingOptions> all = all_of(folder, 3);
  Outcome first;
  std::thread rank0([&] { first = meet_one(all[0]); });
  const Rendezvous at = rendezvous_of(folder.path());
  const auto come = [&](Probe& probe, const Member& member) {
    probe.prove(1, at.secret);
    CHECK(frame_kind(probe.next()) == "proof");
    probe.introduce(member, all[1].agreement);
    probe.wait_until_delivered();
  };
  // Rank 0 reads connections in the order in which they came.
  Probe one(at.port);
  come(one, all[1].self);
  Member again = all[1].self;
  again.host = "";
  again.pid = 1;
  Probe twin(at.port);
  come(twin, again);
  const Json refusal = twin.next();
  CHECK(frame_kind(refusal) == "refuse");
  CHECK(frame_integer(refusal, "code") == 14);
  CHECK_THAT(frame_text(refusal, "text"), Contains("rank 1 (:1) is " + all[1].self.name() + " already"));
  const Outcome third = meet_one(all[2]);
  rank0.join();
  INFO(first.error << " / " << third.error);
  REQUIRE((first.links != nullptr && third.links != nullptr));
  CHECK((first.links->members.size() == 3 && third.links->members.size() == 3));
  const Json welcome = one.next();
  CHECK(frame_kind(welcome) == "welcome");
  CHECK(welcome.at("members").items().size() == 3);
}

FOLDER_TEST("a port in use ends the meeting with its address", "[fast]") {
  const Socket taken = listen_here();
  MeetingOptions options = options_of(folder, 0, 2);
  options.is_one_host = false;
  options.address = "127.0.0.1";
  options.port = port_of(taken);
  const Outcome outcome = meet_one(options);
  CHECK(outcome.code == 14);
  CHECK(outcome.error == "127.0.0.1:" + std::to_string(options.port) + ": cannot listen: Address already in use");
}

FOLDER_TEST("ranks meet at an address from outside, with the same secret only", "[fast]") {
  std::vector<MeetingOptions> all = all_of(folder, 2);
  Socket probe = listen_here();  // a port where nobody listens afterwards
  for (MeetingOptions& o : all) {
    o.is_one_host = false;
    o.address = "127.0.0.1";
    o.port = port_of(probe);
    o.secret = "secret";
    o.folder = folder / "not there yet";
  }
  probe.close();
  CHECK(all_met(meet_all(all)));
  all[1].secret = "guess";
  Time time;
  all[0].clock = time.clock();
  all[1].clock = clock_of_steps(1);
  all[1].hello_seconds = 1e9;  // it waits for an answer however often it looks at the time
  for (MeetingOptions& o : all) { o.init_seconds = kLongStep - 1; }
  Outcome first;
  std::thread rank0([&] { first = meet_one(all[0]); });
  rendezvous_of(all[0].folder);
  const Outcome second = meet_one(all[1]);
  time.now = kLongStep;
  rank0.join();
  CHECK((first.code == 14 && second.code == 14));
  CHECK_THAT(first.error, Contains("rank 1 of 2 did not come") && Contains("a frame with a wrong seal"));
  CHECK_THAT(second.error, Contains("the connection was closed"));
}

FOLDER_TEST("a secret that others can read is refused with what to type", "[fast]") {
  const fs::path path = folder / "secret";
  std::ofstream(path) << "very secret \n";
  fs::permissions(path, fs::perms(0644));
  CHECK_THROWS_WITH(read_secret("train.comm.token_file", path), Contains("train.comm.token_file") &&
                                                                    Contains("of mode 644") &&
                                                                    Contains("chmod 600 " + path.string()));
  fs::permissions(path, fs::perms(0600));
  CHECK(read_secret("train.comm.token_file", path) == "very secret");
  std::ofstream(path).flush();
  CHECK_THROWS_WITH(read_secret("train.comm.token_file", path), Contains("an empty file"));
}

TEST_CASE("a rank that sees another folder says where it looks, after a while and at the end", "[fast]") {
  const TempFolder folder, other;
  std::vector<MeetingOptions> all = all_of(folder, 2);
  all[1].folder = other.path();
  std::string notices[2];
  for (size_t r = 0; r < 2; ++r) {
    all[r].init_seconds = 1;
    all[r].notice_seconds = 0.25;
    all[r].clock = clock_of_steps(0.25);
    all[r].notice = [&notices, r](const std::string& line) { notices[r] += line; };
  }
  const std::vector<Outcome> met = meet_all(all);
  CHECK((met[0].code == 14 && met[1].code == 14));
  CHECK_THAT(notices[0], Contains("rank 1 of 2 have not come yet") && Contains(folder.path().string()));
  for (const std::string& text : {met[1].error, notices[1]}) {
    CHECK_THAT(text, Contains(all[1].self.name()) && Contains(other.path().string()));
  }
}

FOLDER_TEST("what strangers sent is told at the end, with a number where it came more than once", "[fast]") {
  MeetingOptions options = options_of(folder, 0, 2);
  Time time;
  options.clock = time.clock();
  options.init_seconds = kLongStep - 1;
  Outcome first;
  std::thread rank0([&] { first = meet_one(options); });
  const Rendezvous at = rendezvous_of(folder.path());
  std::vector<Socket> strangers;
  for (const std::string& text : {std::string("GET /"), std::string("GET /"), std::string("\1\0\0\0x", 5)}) {
    strangers.push_back(connect_here(at.port));
    write_all(strangers.back(), text);
  }
  for (const Socket& s : strangers) {  // by rank 0, which has noted what came
    while (!is_closed(s)) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  }
  time.now = kLongStep;
  rank0.join();
  CHECK_THAT(first.error, Contains("; control connection: a frame of 542393671 bytes (expected at most 4096) (2 times)"
                                   "; control connection: frame:1:1: ") &&
                              !Contains("(1 times)"));
}

FOLDER_TEST("rank 0 listens on loopback where all ranks are on its host", "[fast]") {
  std::vector<MeetingOptions> all = all_of(folder, 2);
  all[0].address = "0.0.0.0";  // of a launcher; nobody else has to come there
  Outcome first;
  std::thread rank0([&] { first = meet_one(all[0]); });
  const Rendezvous at = rendezvous_of(folder.path());
  CHECK((at.addresses.size() == 1 && at.addresses[0].address == "127.0.0.1"));
  std::string error;
  for (const InterfaceAddress& a : interface_addresses("")) {
    CHECK(!connect_to(resolve(a.address, at.port).front(), 2, error).is_open());
  }
  const Outcome second = meet_one(all[1]);
  rank0.join();
  CHECK((first.links != nullptr && second.links != nullptr));
}

FOLDER_TEST("a silent listener at the place of rank 0 holds a rank up for hello_seconds", "[fast]") {
  Socket silent = listen_here();
  const Descriptor held3 = write_rendezvous(rendezvous_path(folder.path(), "job7"),
                                            {{{"lo", "127.0.0.1"}}, port_of(silent), std::string(64, 'a')});
  std::vector<MeetingOptions> all = all_of(folder, 2);
  Time time;
  all[1].clock = time.clock();
  all[1].hello_seconds = kLongStep - 1;
  Outcome second;
  std::thread rank1([&] { second = meet_one(all[1]); });
  std::string peer;
  Socket taken;  // rank 1 waits there before rank 0 comes
  while (!taken.is_open()) { taken = accept_from(silent, peer); }
  while (!is_closed(taken)) {
    time.now = time.now + 0.5;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(time.now >= all[1].hello_seconds);
  silent.close();  // rank 1 may have come again: its time stands still now
  const Outcome first = meet_one(all[0]);
  rank1.join();
  INFO(first.error << " / " << second.error);
  CHECK((first.links != nullptr && second.links != nullptr));
}

FOLDER_TEST("a start in the same folder ends no other meeting", "[fast]") {
  std::vector<MeetingOptions> all = all_of(folder, 2);
  Outcome first;
  std::thread rank0([&] { first = meet_one(all[0]); });
  rendezvous_of(folder.path());
  const fs::path file = rendezvous_path(folder.path(), "job7");
  const std::string before = read_file(file);
  remove_left_rendezvous(folder.path());
  CHECK(read_file(file) == before);
  const Outcome second = meet_one(all[1]);
  rank0.join();
  INFO(first.error << " / " << second.error);
  CHECK((first.links != nullptr && second.links != nullptr));
}

TEST_CASE("strangers never stop a meeting", "[fast]") {
  std::vector<Socket> open;
  SECTION("a length of 1 GiB, and one that a welcome alone may have") {
    const std::string length = GENERATE(std::string("\x00\x00\x00\x40", 4), std::string("\x01\x00\x01\x00", 4));
    check_undisturbed([&](const Rendezvous& at) {
      open.push_back(connect_here(at.port));
      write_all(open.back(), length + "x");
    });
  }
  SECTION("HTTP, and a frame that is no hello") {
    check_undisturbed([&](const Rendezvous& at) {
      for (const std::string& text :
           {std::string("GET / HTTP/1.1\r\n\r\n"), encode_frame(Json::object({{"kind", "beat"}})),
            encode_frame(Json::object({{"kind", 1}}))}) {
        open.push_back(connect_here(at.port));
        write_all(open.back(), text);
      }
    });
  }
  SECTION("a rank of another build that does not know the secret learns nothing") {
    check_undisturbed([&](const Rendezvous& at) {
      Probe probe(at.port);
      probe.prove(1, std::string(64, 'a'));
      probe.introduce(this_member(1), {2, "b2", "", {}});
      CHECK(probe.next().is_null());
    });
  }
  SECTION("a proof for another launch, and one that was captured") {
    check_undisturbed([&](const Rendezvous& at) {
      Probe other(at.port);
      other.prove(1, at.secret, "job6");
      CHECK(other.next().is_null());
      // What a rank has sent before, to a rank 0 that chose another nonce.
      Probe again(at.port);
      const std::string theirs = frame_text(again.next(), "nonce"), own = make_secret();
      again.connection().send(Json::object({{"kind", "hello"}, {"hebb", 2}, {"rank", 1}, {"nonce", own}}));
      const SessionKeys keys = session_keys("\n" + at.secret, "job7", 1, own, make_secret());
      again.connection().set_keys(keys.to_first, keys.from_first);
      again.connection().send(Json::object({{"kind", "proof"}}));
      CHECK(again.next().is_null());
      // What rank 0 proves with, sent back to it.
      Probe mirror(at.port);
      const std::string nonce = frame_text(mirror.next(), "nonce");
      mirror.connection().send(Json::object({{"kind", "hello"}, {"hebb", 2}, {"rank", 1}, {"nonce", nonce}}));
      const SessionKeys its = session_keys("\n" + at.secret, "job7", 1, nonce, nonce);
      mirror.connection().set_keys(its.from_first, its.to_first);
      mirror.connection().send(Json::object({{"kind", "proof"}}));
      CHECK(mirror.next().is_null());
    });
  }
  SECTION("one byte a second: closed when the time for a hello is over") {
    Time time;
    check_undisturbed(time, [&](const Rendezvous& at) {
      Probe slow(at.port);
      CHECK(frame_kind(slow.next()) == "nonce");
      for (int i = 0; i < 3; ++i) {
        ::send(slow.connection().fd(), "\x10", 1, MSG_NOSIGNAL);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // it is likely to be read
        time.now = time.now + 1;
      }
      time.now = kLongStep;
      CHECK(slow.next().is_null());  // closed
    });
  }
  SECTION("many connections that say nothing") {
    rlimit files{};  // 1,024 of a process are usual, and both ends are here
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 2000));
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
    check_undisturbed([&](const Rendezvous& at) {
      for (int i = 0; i < 1000; ++i) { open.push_back(connect_here(at.port)); }
    });
  }
  SECTION("random bytes") {
    check_undisturbed([&](const Rendezvous& at) {
      std::mt19937 random(1);
      for (int i = 0; i < 200; ++i) {
        std::string bytes(random() % 200, '\0');
        for (char& c : bytes) { c = static_cast<char>(random()); }
        if (i % 2 == 0) { bytes = std::string("\x20\x00\x00\x00", 4) + bytes; }
        write_all(connect_here(at.port), bytes);
      }
    });
  }
}

/// A hello and a wrong proof, or what is left of them.
std::string damaged_hello(std::mt19937& random) {
  std::string bytes =
      encode_frame(Json::object({{"kind", "hello"}, {"hebb", 2}, {"rank", 1}, {"nonce", std::string(64, '0')}})) +
      encode_frame(Json::object({{"kind", "proof"}}), "guess");
  switch (random() % 4) {
    case 0: bytes += bytes; break;
    case 1: bytes.resize(random() % bytes.size()); break;
    case 2: {
      const std::string deep(random() % 4000, random() % 2 == 0 ? '[' : '{');
      bytes = std::string(4, '\0') + deep;
      for (size_t i = 0; i < 4; ++i) { bytes[i] = static_cast<char>((deep.size() >> (8 * i)) & 0xff); }
      break;
    }
    default: break;
  }
  for (uint32_t n = random() % 6; n > 0 && !bytes.empty(); --n) {
    bytes[random() % bytes.size()] = static_cast<char>(random());
  }
  return bytes;
}

TEST_CASE("no bytes of a stranger crash a meeting or hold it up", "[fast][threads]") {
  const uint32_t seed = GENERATE(range(0u, 4u));
  check_undisturbed([&](const Rendezvous& at) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      const Socket socket = connect_here(at.port);
      const std::string bytes = damaged_hello(random);
      const size_t cut = random() % (bytes.size() + 1);
      write_all(socket, bytes.substr(0, cut));
      write_all(socket, bytes.substr(cut));
    }
  });
}

FOLDER_TEST("a false rank 0 ends a rank with an error, never with a crash or for ever", "[fast]") {
  MeetingOptions rank = options_of(folder, 1, 2);
  const Socket listener = listen_here();
  const std::string secret(64, 'a');
  const Descriptor held4 =
      write_rendezvous(rendezvous_path(folder.path(), "job7"), {{{"lo", "127.0.0.1"}}, port_of(listener), secret});
  Time time;  // in attempts
  rank.clock = time.clock();
  rank.init_seconds = 30;
  std::atomic<bool> is_over = false;
  std::thread impostor([&] {
    std::mt19937 random(5);
    std::string peer;
    while (!is_over) {
      const Socket socket = accept_from(listener, peer);
      if (!socket.is_open()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        continue;
      }
      Member member = rank.self;
      member.rank = static_cast<int>(random() % 3);
      Json members = Json::array();
      for (uint32_t n = random() % 4; n > 0; --n) { members.push(member_json(member)); }
      const Json welcome = Json::object({{"kind", "welcome"}, {"members", members}, {"ids", ""}});
      std::string bytes =
          encode_frame(Json::object({{"kind", "nonce"}, {"hebb", 2}, {"nonce", std::string(64, '1')}})) +
          encode_frame(Json::object({{"kind", "proof"}}), random() % 2 == 0 ? "guess" : "") + encode_frame(welcome);
      for (uint32_t n = random() % 4; n > 0; --n) { bytes[random() % bytes.size()] = static_cast<char>(random()); }
      write_all(socket, bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it is read
      time.now = time.now + 1;
    }
  });
  const Outcome outcome = meet_one(rank);
  is_over = true;
  impostor.join();
  CHECK(outcome.links == nullptr);
  CHECK(outcome.code == 14);
  CHECK(time.now >= 30);
}

TEST_CASE("frames cut from damaged bytes are refused, never trusted", "[fast]") {
  std::mt19937 random(2);
  const std::string whole = encode_frame(Json::object({{"kind", "beat"}, {"step", 12}, {"name", "reduce"}}));
  int frames = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = whole + whole;
    for (uint32_t n = random() % 4; n > 0; --n) { bytes[random() % bytes.size()] = static_cast<char>(random()); }
    FrameReader reader(kLargestHello);
    try {
      for (size_t at = 0; at < bytes.size();) {
        const size_t piece = 1 + random() % 20;
        reader.add(std::string_view(bytes).substr(at, piece));
        at += piece;
        while (reader.next()) { ++frames; }
      }
    } catch (const CommError&) {}
  }
  CHECK(frames > 1000);
  FrameReader reader(kLargestHello);
  for (const char c : whole) { reader.add({&c, 1}); }
  const auto frame = reader.next();
  REQUIRE(frame);
  CHECK((frame_integer(*frame, "step") == 12 && frame_text(*frame, "name") == "reduce"));
  CHECK_THROWS_AS(frame_text(*frame, "step"), CommError);
  CHECK_THROWS_AS(frame_integer(*frame, "absent"), CommError);
}

TEST_CASE("networks select addresses", "[fast]") {
  CHECK(is_in_network("10.1.2.3", "10.0.0.0/8"));
  CHECK(!is_in_network("11.1.2.3", "10.0.0.0/8"));
  CHECK(is_in_network("11.1.2.3", "0.0.0.0/0"));
  CHECK(is_in_network("10.1.2.3", "10.1.2.3/32"));
  for (const char* wrong : {"10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "x/8", "10.0.0.0/8x"}) {
    CHECK_THROWS_WITH(is_in_network("10.1.2.3", wrong), Contains("expected a network such as 10.0.0.0/8"));
  }
  CHECK(interface_addresses("127.0.0.0/8").at(0).address == "127.0.0.1");
  CHECK_THROWS_WITH(interface_addresses("eth99"), Contains("train.comm.interface: no interface"));
  for (const InterfaceAddress& a : interface_addresses("")) { CHECK(!a.address.starts_with("127.")); }
}
