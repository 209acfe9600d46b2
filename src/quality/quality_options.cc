#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/nearest.h"
#include "base/status.h"
#include "kvasir/quality.h"

namespace kvasir {
namespace {

constexpr std::int64_t kMostSize = std::int64_t{1} << 40;
constexpr std::string_view kOptions[] = {"kl", "every", "stride", "least", "most"};

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <class... Args>
Status refuse(fmt::format_string<Args...> format, Args&&... args) {
  return invalid_argument(format, std::forward<Args>(args)...).about({"quality"});
}

}  // namespace

Result<QualityOptions> parse_quality(std::string_view text) {
  QualityOptions options;
  options.kl = 0;
  std::vector<std::string_view> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    bool known = true, read = false;
    if (key == "kl") {
      read = read_number(value, options.kl);
    } else if (key == "every") {
      read = read_number(value, options.every);
    } else if (key == "stride") {
      read = read_number(value, options.stride);
    } else if (key == "least") {
      read = read_number(value, options.least);
    } else if (key == "most") {
      read = read_number(value, options.most);
    } else {
      known = false;
    }
    if (!known)
      return refuse("quality has no option '{:.64}'{}; its options are: kl, every, stride, least, most", key,
                    did_you_mean(key, kOptions));
    if (!read) return refuse("quality: '{:.64}' is not of the form {}=NUMBER", item, key);
    if (std::ranges::find(seen, key) != seen.end()) return refuse("quality: option '{}' is given twice", key);
    seen.push_back(key);
  }
  if (std::ranges::find(seen, "stride") == seen.end()) options.stride = default_stride(options.every);
  if (options.kl == 0) return refuse("quality needs a bound on the KL divergence, such as kl=0.05");
  KVASIR_RETURN_IF_ERROR(check_quality(options));
  return options;
}

Status check_quality(const QualityOptions& options) {
  if (!(options.kl > 0) || !std::isfinite(options.kl))
    return refuse("quality: kl={} must be a number above 0, in nats per token", options.kl);
  if (options.every < 1 || options.every > kMostQualityEvery)
    return refuse("quality: every={} is outside 1 to {} tokens", options.every, kMostQualityEvery);
  if (options.stride < 1 || options.stride > options.every)
    return refuse("quality: stride={} is outside 1 to every={}", options.stride, options.every);
  if (options.least < 0 || options.least > kMostSize)
    return refuse("quality: least={} is outside 1 to 2^40 (0: the policy's)", options.least);
  if (options.most < 0 || options.most > kMostSize)
    return refuse("quality: most={} is outside 1 to 2^40 (0: what the text needs)", options.most);
  if (options.most > 0 && options.least > options.most)
    return refuse("quality: least={} is more than most={}", options.least, options.most);
  return {};
}

}  // namespace kvasir
