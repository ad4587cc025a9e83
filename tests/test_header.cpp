// Only the precompiled tests/test.h is of use.
#include "tests/test.h"
