#include "core/hash.h"

#include <string>

#include "tests/test.h"

TEST_CASE("checksums equal the published check values", "[fast]") {
  const std::string digits = "123456789";
  CHECK(crc32(digits.data(), digits.size()) == 0xCBF43926u);
  CHECK(crc32c(digits.data(), digits.size()) == 0xE3069283u);
  CHECK(crc32("", 0) == 0);
  CHECK(crc32c("", 0) == 0);
  const std::string zeros(32, '\0');  // RFC 3720, appendix B.4
  CHECK(crc32c(zeros.data(), zeros.size()) == 0x8A9136AAu);
  const std::string fox = "The quick brown fox jumps over the lazy dog";
  CHECK(crc32(fox.data(), fox.size()) == 0x414FA339u);
}

TEST_CASE("checksums go on over pieces of any length", "[fast]") {
  std::string bytes;
  for (int i = 0; i < 101; ++i) { bytes += static_cast<char>(i * 37 + 11); }
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    CHECK(crc32(bytes.data() + cut, bytes.size() - cut, crc32(bytes.data(), cut)) == crc32(bytes.data(), bytes.size()));
    CHECK(crc32c(bytes.data() + cut, bytes.size() - cut, crc32c(bytes.data(), cut)) ==
          crc32c(bytes.data(), bytes.size()));
  }
}

TEST_CASE("FNV-1a 64 equals the published vectors", "[fast]") {
  CHECK(fnv1a64("") == 0xCBF29CE484222325ULL);
  CHECK(fnv1a64("a") == 0xAF63DC4C8601EC8CULL);
  CHECK(fnv1a64("foobar") == 0x85944171F73967E8ULL);
  CHECK(fnv1a64("bar", 3, fnv1a64("foo")) == fnv1a64("foobar"));
}
