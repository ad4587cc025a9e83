#include "eval/prompt.h"

#include "core/error.h"
#include "tests/test.h"

namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t kBos = 256, kEos = 257;

std::shared_ptr<const Tokenizer> bytes(bool add_bos) { return Tokenizer::load({"bytes", "", add_bos, true}); }

}  // namespace

TEST_CASE("BOS stands before every text where the tokenizer adds it, else EOS before an empty one", "[fast]") {
  CHECK(prompt_ids(*bytes(true), "ab") == Ids{kBos, 'a', 'b'});
  CHECK(prompt_ids(*bytes(true), "") == Ids{kBos});
  CHECK(prompt_ids(*bytes(false), "ab") == Ids{'a', 'b'});
  CHECK(prompt_ids(*bytes(false), "") == Ids{kEos});
}

TEST_CASE("white space at the end of a context belongs to the continuation", "[fast]") {
  const ScoredText text = encode_pair(*bytes(false), "ab \n", "c", 100, "f");
  CHECK(text.ids == Ids{'a', 'b', ' ', '\n', 'c'});
  CHECK(text.scored == 3);
}

TEST_CASE("after an empty context the first token is scored behind EOS or BOS", "[fast]") {
  for (const char* context : {"", " "}) {
    const ScoredText text = encode_pair(*bytes(false), context, "c", 100, "f");
    CHECK(text.ids.front() == kEos);
    CHECK(text.scored + 1 == static_cast<int64_t>(text.ids.size()));
  }
  const ScoredText text = encode_pair(*bytes(true), "", "cd", 100, "f");
  CHECK(text.ids == Ids{kBos, 'c', 'd'});
  CHECK(text.scored == 2);
}

TEST_CASE("the last max_length + 1 ids are kept", "[fast]") {
  CHECK(encode_pair(*bytes(true), "abc", "de", 5, "f").ids == Ids{kBos, 'a', 'b', 'c', 'd', 'e'});
  CHECK(encode_pair(*bytes(true), "abc", "de", 4, "f").ids == Ids{'a', 'b', 'c', 'd', 'e'});
  const ScoredText text = encode_pair(*bytes(true), "abc", "de", 2, "f");
  CHECK(text.cut == 3);
  CHECK(encode_pair(*bytes(true), "abc", "de", 5, "f").cut == 0);
  CHECK(text.ids == Ids{'c', 'd', 'e'});
  CHECK(text.scored == 2);
}

TEST_CASE("a continuation that cannot be scored is refused", "[fast]") {
  CHECK_THROWS_WITH(encode_pair(*bytes(true), "abc", "de", 1, "f:3"),
                    "f:3: the continuation is too long (found 2 tokens, expected at most max_length (1))");
  CHECK(encode_pair(*bytes(true), "abc", "", 9, "f:3").is_merged());
}
