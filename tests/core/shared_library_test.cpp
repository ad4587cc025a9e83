#include "core/shared_library.h"

#include "tests/test.h"

TEST_CASE("a library that is not there leaves a reason that names what was looked for", "[fast]") {
  const SharedLibrary library({"/nowhere/libhebb_none.so.1", "libhebb_none.so.1"});
  CHECK_THAT(library.problem(), Catch::StartsWith("cannot be loaded: looked for /nowhere/libhebb_none.so.1, "
                                                  "libhebb_none.so.1 (libhebb_none.so.1: cannot open"));
  CHECK(library.path().empty());
}

TEST_CASE("the first library that is there is loaded", "[fast]") {
  const SharedLibrary library({"libhebb_none.so.1", "libm.so.6"});
  REQUIRE(library.problem().empty());
  CHECK_THAT(library.path(), Catch::Contains("libm.so.6"));
  double (*cosine)(double) = nullptr;
  REQUIRE(library.find("cos", cosine));
  CHECK(cosine(0) == 1);
  CHECK(library.find("hebb_no_such_function") == nullptr);
}
