// The ranks of a run find each other over loopback, whatever strangers do meanwhile.
#include "comm/meeting_text.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

MeetingOptions options_of(const TempFolder& folder, int rank, int size) {
  MeetingOptions options;
  options.size = size;
  options.self = this_member(rank);
  options.self.build = "b1";
  options.self.config = "c1";
  options.self.library = "mpi 4";
  options.self.device = "cpu";
  options.launch = "job7";
  options.folder = folder.path();
  options.is_one_host = true;
  options.init_seconds = 20;
  return options;
}

std::vector<MeetingOptions> all_of(const TempFolder& folder, int size) {
  std::vector<MeetingOptions> all;
  for (int r = 0; r < size; ++r) { all.push_back(options_of(folder, r, size)); }
  return all;
}

Socket listen_here() { return listen_at(resolve("127.0.0.1", 0).front()); }
int port_of(const Socket& socket) { return local_endpoint(socket).port(); }

/// All with an address from outside, where nobody listens.
std::vector<MeetingOptions> all_at_free_port(const TempFolder& folder, int size) {
  std::vector<MeetingOptions> all = all_of(folder, size);
  const Socket probe = listen_here();
  for (MeetingOptions& o : all) {
    o.address = "127.0.0.1";
    o.port = port_of(probe);
  }
  return all;
}

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

/// The port of rank 0, as soon as it has written it.
int port_of(const TempFolder& folder) {
  for (;;) {
    if (const auto found = read_rendezvous(rendezvous_path(folder.path(), "job7"))) { return found->port; }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Socket connect_here(int port) {
  std::string error;
  return connect_to(resolve("127.0.0.1", port).front(), 2, error);
}

void write_all(const Socket& socket, const std::string& bytes) {
  [[maybe_unused]] const ssize_t n = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Ranks meet although `disturb` is done to the port of rank 0 before rank 1 comes.
void check_undisturbed(const std::function<void(int port)>& disturb, double hello_seconds = 10) {
  const TempFolder folder;
  std::vector<MeetingOptions> all = all_of(folder, 2);
  all[0].hello_seconds = hello_seconds;
  Outcome first;
  std::thread rank0([&] { first = meet_one(all[0]); });
  disturb(port_of(folder));
  const Outcome second = meet_one(all[1]);
  rank0.join();
  INFO(first.error << " / " << second.error);
  CHECK((first.links != nullptr && second.links != nullptr));
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
  write_rendezvous(path, {.addresses = {{"lo", "127.0.0.1"}}, .port = 4711, .token = "t"});
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(path.filename() == "rendezvous.j.1.json");
  const auto read = read_rendezvous(path);
  REQUIRE(read);
  CHECK((read->port == 4711 && read->token == "t" && read->addresses[0].address == "127.0.0.1"));
  folder.write("rendezvous.other.json", "{}");
  remove_other_rendezvous(folder.path(), "j.1");
  CHECK((fs::exists(path) && !fs::exists(folder / "rendezvous.other.json")));
  std::ofstream(path) << "{\"port\": \"x\"}";
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
  CHECK(id({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_RESTART_COUNT", "1"}}) == "5.0.1");
}

TEST_CASE("tokens are random and compared as a whole", "[fast]") {
  const std::string token = make_token();
  CHECK((token.size() == 64 && token != make_token()));
  CHECK(equal_tokens(token, token));
  CHECK(!equal_tokens(token, token.substr(1)));
  CHECK(!equal_tokens("ab", "ac"));
  CHECK(equal_tokens("", ""));
}

FOLDER_TEST("after init_seconds missing ranks are named, and those that came", "[fast]") {
  std::vector<MeetingOptions> all = all_of(folder, 4);
  all.pop_back();
  all.erase(all.begin() + 1);
  for (MeetingOptions& o : all) { o.init_seconds = 0.5; }
  const std::vector<Outcome> met = meet_all(all);
  CHECK(met[0].code == 14);
  CHECK_THAT(met[0].error,
             Contains("ranks 1, 3 of 4 did not come within 0.5 s; here: rank 0 (") && Contains(all[1].self.name()));
  CHECK((met[1].code == 14 && met[1].is_of_other && met[1].error == met[0].error));
}

FOLDER_TEST("a rank without rank 0 says where it looked", "[fast]") {
  MeetingOptions options = options_of(folder, 1, 2);
  options.init_seconds = 0.3;
  CHECK_THAT(meet_one(options).error, Contains("cannot reach rank 0 within 0.3 s (no file "));
  // A file that a killed attempt left behind: nobody listens there.
  const int port = port_of(listen_here());
  write_rendezvous(rendezvous_path(folder.path(), "job7"), {{{"lo", "127.0.0.1"}}, port, "old"});
  const Outcome outcome = meet_one(options);
  CHECK(outcome.code == 14);
  CHECK_THAT(outcome.error, Contains("127.0.0.1:" + std::to_string(port) + " (lo): Connection refused"));
}

FOLDER_TEST("a stale rendezvous file delays nobody", "[fast]") {
  write_rendezvous(rendezvous_path(folder.path(), "job7"), {{{"lo", "127.0.0.1"}}, 1, "old"});
  write_rendezvous(rendezvous_path(folder.path(), "job6"), {{{"lo", "127.0.0.1"}}, 1, "older"});
  CHECK(all_met(meet_all(all_of(folder, 3))));
  CHECK(fs::is_empty(folder.path()));
}

FOLDER_TEST("ranks that differ are named with both values", "[fast]") {
  const auto outcome = [&](const std::function<void(MeetingOptions&)>& change) {
    std::vector<MeetingOptions> all = all_of(folder, 2);
    change(all[1]);
    for (MeetingOptions& o : all) { o.init_seconds = 3; }
    std::vector<Outcome> met = meet_all(all);
    CHECK((met[0].code == 2 && met[1].code == 2));
    return met[0].error;
  };
  const std::string name0 = this_member(0).name(), name1 = this_member(1).name();
  CHECK(outcome([](MeetingOptions& o) { o.self.build = "b2"; }) ==
        "meeting: build: " + name0 + " has b1, " + name1 + " has b2");
  CHECK_THAT(outcome([](MeetingOptions& o) { o.self.config = "c2"; }),
             Contains("configuration: " + name0 + " has c1, " + name1 + " has c2"));
  CHECK_THAT(outcome([](MeetingOptions& o) { o.self.library = "mpi 5"; }), Contains("communication library"));
  CHECK_THAT(outcome([](MeetingOptions& o) { o.size = 3; }),
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
  std::vector<MeetingOptions> all = all_of(folder, 3);
  std::vector<Outcome> met(3);
  std::thread rank0([&] { met[0] = meet_one(all[0]); });
  std::thread rank1([&] { met[1] = meet_one(all[1]); });
  Outcome twin;
  while (twin.code == 0) {  // as soon as rank 1 is there
    MeetingOptions again = all[1];
    again.self.host = "";
    again.self.pid = 1;
    const int port = port_of(folder);
    FrameConnection probe(connect_here(port), "", kLargestFrame);
    const std::string token = read_rendezvous(rendezvous_path(folder.path(), "job7"))->token;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 1 polls every 50 ms
    probe.send(hello_frame(again, token));
    while (probe.is_open()) { probe.receive(); }
    const auto frame = probe.next();
    REQUIRE(frame);
    twin.code = static_cast<int>(frame_integer(*frame, "code"));
    twin.error = frame_text(*frame, "reason");
  }
  CHECK_THAT(twin.error, Contains("rank 1 (:1) is " + all[1].self.name() + " already"));
  met[2] = meet_one(all[2]);
  rank0.join();
  rank1.join();
  CHECK(all_met(met));
}

FOLDER_TEST("a port in use ends the meeting with its address", "[fast]") {
  const Socket taken = listen_here();
  MeetingOptions options = options_of(folder, 0, 2);
  options.address = "127.0.0.1";
  options.port = port_of(taken);
  const Outcome outcome = meet_one(options);
  CHECK(outcome.code == 14);
  CHECK(outcome.error == "127.0.0.1:" + std::to_string(options.port) + ": cannot listen: Address already in use");
}

FOLDER_TEST("ranks meet at an address from outside, with the same token only", "[fast]") {
  std::vector<MeetingOptions> all = all_at_free_port(folder, 2);
  for (MeetingOptions& o : all) {
    o.token = "secret";
    o.folder = folder / "not there yet";
  }
  CHECK(all_met(meet_all(all)));
  all[1].token = "guess";
  for (MeetingOptions& o : all) { o.init_seconds = 0.5; }
  const std::vector<Outcome> met = meet_all(all);
  CHECK((met[0].code == 14 && met[1].code == 14));
  CHECK_THAT(met[0].error, Contains("rank 1 of 2 did not come"));
  CHECK_THAT(met[1].error, Contains("refused: wrong token"));
}

TEST_CASE("a rank that sees another folder is named", "[fast]") {
  const TempFolder folder, other;
  std::vector<MeetingOptions> all = all_at_free_port(folder, 2);
  for (MeetingOptions& o : all) { o.init_seconds = 1; }
  all[1].folder = other.path();
  const std::vector<Outcome> met = meet_all(all);
  CHECK((met[0].code == 4 && met[0].is_of_other && met[1].code == 4 && !met[1].is_of_other));
  CHECK_THAT(met[1].error, Contains(all[1].self.name() + ": " + other.path().string()));
  CHECK(met[0].error == met[1].error);
}

TEST_CASE("strangers never stop a meeting", "[fast]") {
  std::vector<Socket> open;
  SECTION("a length of 1 GiB, and one that a welcome alone may have") {
    const std::string length = GENERATE(std::string("\x00\x00\x00\x40", 4), std::string("\x01\x00\x01\x00", 4));
    check_undisturbed([&](int port) {
      open.push_back(connect_here(port));
      write_all(open.back(), length + "x");
    });
  }
  SECTION("HTTP, and a frame that is no hello") {
    check_undisturbed([&](int port) {
      for (const std::string& text :
           {std::string("GET / HTTP/1.1\r\n\r\n"), encode_frame(Json::object({{"kind", "beat"}})),
            encode_frame(Json::object({{"kind", 1}}))}) {
        open.push_back(connect_here(port));
        write_all(open.back(), text);
      }
    });
  }
  SECTION("one byte a second: closed when the time for a hello is over") {
    check_undisturbed(
        [&](int port) {
          const Socket slow = connect_here(port);
          for (int i = 0; i < 4; ++i) {
            write_all(slow, "\x10");
            std::this_thread::sleep_for(std::chrono::milliseconds(60));
          }
          char byte = 0;
          CHECK(::recv(slow.fd(), &byte, 1, 0) <= 0);  // closed
        },
        0.1);
  }
  SECTION("many connections that say nothing") {
    rlimit files{};  // 1,024 of a process are usual, and both ends are here
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 2000));
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
    check_undisturbed([&](int port) {
      for (int i = 0; i < 1000; ++i) { open.push_back(connect_here(port)); }
    });
  }
  SECTION("random bytes") {
    check_undisturbed([&](int port) {
      std::mt19937 random(1);
      for (int i = 0; i < 200; ++i) {
        std::string bytes(random() % 200, '\0');
        for (char& c : bytes) { c = static_cast<char>(random()); }
        if (i % 2 == 0) { bytes = std::string("\x20\x00\x00\x00", 4) + bytes; }
        write_all(connect_here(port), bytes);
      }
    });
  }
}

/// A hello with a wrong token, or what is left of it.
std::string damaged_hello(std::mt19937& random) {
  MeetingOptions options;
  options.size = 2;
  options.self = this_member(1);
  options.launch = "job7";
  std::string bytes = encode_frame(hello_frame(options, "guess"));
  switch (random() % 4) {
    case 0: bytes += bytes; break;
    case 1: bytes.resize(random() % bytes.size()); break;
    case 2: {
      const std::string deep(random() % 60000, random() % 2 == 0 ? '[' : '{');
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
  const auto begin = std::chrono::steady_clock::now();
  check_undisturbed([&](int port) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      const Socket socket = connect_here(port);
      const std::string bytes = damaged_hello(random);
      const size_t cut = random() % (bytes.size() + 1);
      write_all(socket, bytes.substr(0, cut));
      write_all(socket, bytes.substr(cut));
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
}

FOLDER_TEST("a false rank 0 ends a rank with an error, never with a crash or for ever", "[fast]") {
  MeetingOptions rank = options_of(folder, 1, 2);
  const Socket listener = listen_here();
  rank.address = "127.0.0.1";
  rank.port = port_of(listener);
  rank.init_seconds = 2;
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
      const Json welcome = Json::object({{"kind", "welcome"}, {"members", members}, {"ids", ""}});  // no nonce
      std::string bytes = encode_frame(welcome);
      for (uint32_t n = random() % 4; n > 0; --n) { bytes[random() % bytes.size()] = static_cast<char>(random()); }
      write_all(socket, bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it is read
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = meet_one(rank);
  is_over = true;
  impostor.join();
  CHECK(outcome.links == nullptr);
  CHECK(outcome.code == 14);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(12));
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
