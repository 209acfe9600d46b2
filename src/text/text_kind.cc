#include "text/text_kind.h"

#include "base/status.h"

namespace kvasir {

Status check_text_kind(std::string_view bytes, std::string_view source) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\x1f\x8b"sv))
    return invalid_argument("{} is compressed (gzip), not a text; unpack it with `gunzip`", source);
  if (bytes.starts_with("PK\3\4"sv))
    return invalid_argument("{} is compressed (zip), not a text; unpack it with `unzip`", source);
  if (bytes.starts_with("\xff\xfe"sv) || bytes.starts_with("\xfe\xff"sv))
    return invalid_argument("{} is in UTF-16, not UTF-8; convert it with `iconv -f UTF-16 -t UTF-8`", source);
  return {};
}

}  // namespace kvasir
