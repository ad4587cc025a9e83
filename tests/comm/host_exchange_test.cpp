// Texts of the host between ranks.
#include "comm/host_exchange.h"

#include "comm/thread_communicator.h"
#include "tests/test.h"

TEST_CASE("texts of all lengths arrive whole, those longer than a piece, too", "[fast]") {
  std::vector<std::string> texts{"", "seven!!", std::string(9'000'001, 'x'), std::string(8'388'608, 'y')};
  texts[2][8'388'608] = '1';
  texts[2].back() = '2';
  run_ranks(4, [&](Communicator& communicator) {
    HostExchange exchange(communicator, DeviceKind::cpu);
    const auto found = exchange.gather_texts(texts[static_cast<size_t>(communicator.rank())]);
    CHECK((found == texts));
    CHECK(exchange.gather_texts("") == std::vector<std::string>(4));
    CHECK(exchange.from_first(communicator.rank() == 0 ? "said" : "unsaid") == "said");
  });
}
