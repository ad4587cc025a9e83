#include "core/host.h"

#include <unistd.h>

namespace hebb {

std::string host_name() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace hebb
