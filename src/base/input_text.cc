#include "base/input_text.h"

#include <sys/stat.h>

#include <utility>

#include "base/status.h"

namespace kvasir {

Result<InputText> InputText::open(const std::string& path, std::size_t max_bytes) {
  InputText input;
  struct stat st {};
  // Files of /proc are regular and report size 0, but have content.
  if (path != "-" && ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
    KVASIR_ASSIGN_OR_RETURN(input.file_, MappedFile::open(path));
    if (input.file_->bytes().size() > max_bytes)
      return exhausted("'{}' is larger than the {} bytes accepted here; split it", path, max_bytes);
  } else {
    KVASIR_ASSIGN_OR_RETURN(input.copy_, read_file(path, max_bytes));
  }
  return input;
}

std::string_view InputText::text() const {
  if (!file_) return copy_;
  return {reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size()};
}

}  // namespace kvasir
