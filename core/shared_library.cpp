#include "core/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include "core/error.h"
#include "core/join.h"

namespace hebb {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, Symbols symbols) {
  std::string reason;
  for (const std::string& name : names) {
    handle_ = ::dlopen(name.c_str(), RTLD_NOW | (symbols == Symbols::shared ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle_ != nullptr) { return; }
    const char* text = ::dlerror();
    reason = text != nullptr ? text : "unknown error";
  }
  problem_ = "cannot be loaded: looked for " + join(names, ", ") + " (" + reason + ")";
}

std::string SharedLibrary::path() const {
  struct link_map* map = nullptr;
  return handle_ != nullptr && ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}

void* SharedLibrary::find(const char* symbol) const {
  HEBB_ASSERT(handle_ != nullptr);
  return ::dlsym(handle_, symbol);
}

}  // namespace hebb
