#include "gguf/in_file.h"

#include <fmt/core.h>

#include <string>

namespace kvasir::gguf {

Status in_file(const Status& status, const File& file) {
  const std::string& path = file.parts().front().path;
  if (status.ok() || path.empty() || status.message().find(path) != std::string::npos) return status;
  const bool says_what_to_do =
      status.code() != StatusCode::kDataLoss || status.message().find(';') != std::string::npos;
  return status.with_message(fmt::format("'{}': {}{}", path, status.message(),
                                         says_what_to_do ? "" : "; download or convert the model again"));
}

}  // namespace kvasir::gguf
