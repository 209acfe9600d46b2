#include "grammar/sources/string_formats.h"

#include <utility>

namespace kvasir::grammar {
namespace {

// RFC 3339, section 5.6. Days are limited by the month, without leap days; there are no leap seconds.
#define KVASIR_DATE                                                                        \
  "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]" \
  "[0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define KVASIR_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
// RFC 1123, section 2.1: at most 63 characters a label; here at most 8 labels.
#define KVASIR_LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define KVASIR_HOST KVASIR_LABEL "(?:\\." KVASIR_LABEL "){0,3}"
#define KVASIR_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define KVASIR_IPV4 KVASIR_BYTE "(?:\\." KVASIR_BYTE "){3}"
#define KVASIR_HEX "[0-9a-fA-F]"
#define KVASIR_PATH "(?:[a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", KVASIR_DATE},
    {"time", KVASIR_TIME},
    {"date-time", KVASIR_DATE "T" KVASIR_TIME},
    {"duration",
     "P(?:[0-9]{1,9}W|[0-9]{1,9}D(?:T[0-9]{1,9}H)?|[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M"
     "(?:[0-9]{1,9}D)?|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"},
    {"email", "[a-zA-Z0-9_+-]{1,32}(?:\\.[a-zA-Z0-9_+-]{1,16}){0,1}@" KVASIR_LABEL "(?:\\." KVASIR_LABEL "){1,2}"},
    {"hostname", KVASIR_HOST},
    {"ipv4", KVASIR_IPV4},
    {"ipv6", "(?:" KVASIR_HEX "{1,4}:){7}" KVASIR_HEX "{1,4}|(?:" KVASIR_HEX "{1,4}:){1,6}:" KVASIR_HEX
             "{1,4}|::(?:" KVASIR_HEX "{1,4}:){0,5}" KVASIR_HEX "{1,4}|::"},
    {"uuid", KVASIR_HEX "{8}-" KVASIR_HEX "{4}-" KVASIR_HEX "{4}-" KVASIR_HEX "{4}-" KVASIR_HEX "{12}"},
    {"uri", "[a-zA-Z][a-zA-Z0-9+.-]{0,15}://" KVASIR_HOST "(?::[0-9]{1,5})?(?:/" KVASIR_PATH "*)?(?:\\?" KVASIR_PATH
            "*)?(?:#" KVASIR_PATH "*)?"},
    // Formats that only describe the string's use.
    {"password", ""},
    {"path", ""},
    {"file-path", ""},
    {"directory-path", ""},
    {"binary", ""},
    {"textarea", ""},
    {"color", "#[0-9a-fA-F]{6}"},
    {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
};

#undef KVASIR_DATE
#undef KVASIR_TIME
#undef KVASIR_LABEL
#undef KVASIR_HOST
#undef KVASIR_BYTE
#undef KVASIR_IPV4
#undef KVASIR_HEX
#undef KVASIR_PATH

}  // namespace

std::optional<std::string_view> regex_of_format(std::string_view format) {
  for (const auto& [name, regex] : kFormats)
    if (name == format) return regex;
  return std::nullopt;
}

}  // namespace kvasir::grammar
