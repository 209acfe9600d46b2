// Metrics: the scores of their originals (vectors.json), and texts that nobody meant to be scored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/shared_data.h"
#include "tasks/metrics/exact_match.h"
#include "tasks/metrics/lcs.h"
#include "tasks/metrics/math_equivalence.h"
#include "tasks/metrics/metric.h"
#include "tasks/metrics/preparation.h"
#include "tasks/metrics/python_text.h"
#include "tasks/metrics/rouge.h"
#include "tasks/metrics/sequence_ratio.h"

namespace kvasir::test {
namespace {

using Strings = std::vector<std::string>;

double score(std::string_view name, std::string_view prediction, const Strings& references,
             const Strings& classes = {}) {
  const Metric* metric = find_metric(name);
  if (metric == nullptr) {
    ADD_FAILURE() << "no metric " << name;
    return -1;
  }
  return metric->score({prediction, references, classes});
}

ExactMatch exact_match(const ExactMatchOptions& options) {
  auto match = ExactMatch::create(options);
  EXPECT_TRUE(match.ok()) << match.status().message();
  return std::move(*match);
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

// Different words from 0 to count - 1, each followed by `end`.
std::string numbered(std::string_view word, std::size_t count, std::string_view end) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all.append(word).append(std::to_string(i)).append(end);
  return all;
}

nlohmann::json vectors() {
  std::ifstream file(source_dir() + "/tests/tasks/metrics/vectors.json");
  return nlohmann::json::parse(file);
}

TEST(Metrics, ScoreAsTheirOriginals) {
  const std::map<std::string, ExactMatchOptions> options = {
      {"exact_match case", {.ignore_case = true}},
      {"exact_match punctuation", {.ignore_punctuation = true}},
      {"exact_match numbers", {.ignore_numbers = true}},
      {"exact_match regexes", {.regexes_to_ignore = {R"(\s+)", R"(\b[Tt]he\b)", "x*?", R"(\.$)"}}},
  };
  std::set<std::string> seen;
  const nlohmann::json all = vectors();
  for (const nlohmann::json& one : all["scores"]) {
    const std::string name = one[0];
    const std::string prediction = one[1];
    const Strings references = one[2];
    const Strings classes = one[3];
    const auto found = options.find(name);
    const double value = found == options.end() ? score(name, prediction, references, classes)
                                                : exact_match(found->second).score({prediction, references, classes});
    EXPECT_NEAR(value, one[4].get<double>(), 1e-9) << one.dump();
    seen.insert(name);
  }
  EXPECT_GT(all["scores"].size(), 1000);
  for (const std::string_view name : metric_names()) EXPECT_TRUE(seen.contains(std::string(name))) << name;
}

TEST(Preparations, GiveWhatTheirOriginalsGive) {
  std::set<std::string> seen = {"between_dollars"};  // below
  const nlohmann::json all = vectors();
  for (const nlohmann::json& one : all["preparations"]) {
    const std::string name = one[0];
    const Preparation* step = find_preparation(name);
    ASSERT_NE(step, nullptr) << name;
    EXPECT_EQ(step->apply(one[1].get<std::string>()), one[2].get<std::string>()) << one.dump();
    seen.insert(name);
  }
  for (const std::string_view name : preparation_names()) EXPECT_TRUE(seen.contains(std::string(name))) << name;
}

TEST(Preparations, BetweenDollars) {
  EXPECT_EQ(metrics::between_dollars(""), "");
  EXPECT_EQ(metrics::between_dollars("costs $5"), "costs $5");
  EXPECT_EQ(metrics::between_dollars("is $x$."), "x");
  EXPECT_EQ(metrics::between_dollars("$1$ and $2$"), "1$ and $2");
  EXPECT_EQ(metrics::between_dollars("$$"), "");
}

TEST(Metrics, AreFoundByName) {
  EXPECT_EQ(find_metric("qa_f1"), nullptr);
  EXPECT_EQ(find_metric(""), nullptr);
  EXPECT_EQ(find_preparation("first"), nullptr);
  std::set<std::string_view> names;
  for (const std::string_view name : metric_names()) {
    ASSERT_NE(find_metric(name), nullptr);
    EXPECT_EQ(find_metric(name)->name, name);
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const std::string_view name : preparation_names()) EXPECT_NE(find_preparation(name), nullptr);
}

TEST(Metrics, WithoutReferencesScoreNothing) {
  for (const std::string_view name : metric_names()) {
    EXPECT_EQ(score(name, "", {}), 0) << name;
    EXPECT_EQ(score(name, "A", {}, {"A"}), 0) << name;
  }
}

TEST(Metrics, TakeInvalidBytesForReplacementCharacters) {
  const std::string broken = "caf\xC3 \xFF\xFE x \xE2\x82 5.\xF0\x9F";
  const std::string replaced = "caf\uFFFD \uFFFD\uFFFD x \uFFFD 5.\uFFFD";
  ASSERT_EQ(metrics::replace_invalid_utf8(broken), replaced);
  for (const std::string_view name : metric_names()) {
    for (const Strings& references : {Strings{replaced}, Strings{"5", "x"}, Strings{"\uFFFD"}}) {
      EXPECT_EQ(score(name, broken, references, {"x"}), score(name, replaced, references, {"x"})) << name;
    }
    EXPECT_EQ(score(name, "x", {"\xFF"}, {"\xFF"}), score(name, "x", {"\uFFFD"}, {"\uFFFD"})) << name;
  }
  EXPECT_EQ(score("qa_f1_score", broken, {replaced}), 1);
  for (const std::string_view name : preparation_names()) {
    EXPECT_EQ(find_preparation(name)->apply(broken), find_preparation(name)->apply(replaced)) << name;
  }
}

TEST(Metrics, StayBetween0And1OnAnyBytes) {
  std::uint32_t state = 1;
  const auto random_bytes = [&] {
    constexpr std::string_view kLikely = " .\n\"'ABCD0123456789\\{}$#/=%_-abc\xC3\xA9\xFF";
    std::string bytes;
    for (std::uint32_t size = state % 40; bytes.size() < size;) {
      state = state * 1664525 + 1013904223;
      const std::uint32_t drawn = state >> 16;
      bytes += drawn % 4 == 0 ? static_cast<char>(drawn >> 4) : kLikely[drawn / 4 % kLikely.size()];
    }
    state = state * 1664525 + 1013904223;
    return bytes;
  };
  for (int round = 0; round < 300; ++round) {
    const std::string prediction = random_bytes();
    const Strings references = {random_bytes(), random_bytes()};
    for (const std::string_view name : metric_names()) {
      const double value = score(name, prediction, references, references);
      EXPECT_TRUE(value >= 0 && value <= 1) << name << " gives " << value;
      EXPECT_TRUE(std::isfinite(score(name, references[0], references, references))) << name;
    }
    for (const std::string_view name : preparation_names()) (void)find_preparation(name)->apply(prediction);
  }
}

// What would take minutes if time were quadratic, or memory gigabytes.
TEST(Metrics, TakeLongTexts) {
  const Strings texts = {std::string(300'000, 'A'),          std::string(300'000, ' '),    repeated("a. ", 100'000),
                         repeated("The answer is ", 20'000), repeated("\\frac1/", 40'000), numbered("w", 40'000, " "),
                         repeated("Paragraph 1", 25'000),    repeated("{", 300'000),       repeated("\xFF", 100'000)};
  for (const std::string_view name : metric_names()) {
    for (const std::string& text : texts) {
      const double value = score(name, text, {text.substr(0, 100'000), text.substr(0, 100)}, {"A", "w1"});
      EXPECT_TRUE(value >= 0 && value <= 1) << name;
    }
  }
  for (const std::string_view name : preparation_names()) {
    for (const std::string& text : texts) (void)find_preparation(name)->apply(text);
  }
}

TEST(Rouge, TakesManyDifferentSentences) {
  // Each pair of sentences shares a word.
  EXPECT_GT(metrics::rouge_package_l(numbered("x a", 20'000, ". "), numbered("x b", 20'000, ". ")), 0);
  EXPECT_GT(metrics::rouge_l_sum(numbered("x a", 20'000, "\n"), numbered("x b", 20'000, "\n")), 0);
}

TEST(Rouge, ReadsTheFirstWordsOfALongText) {
  const std::string most = numbered("w", metrics::kMostRougeWords, " ");
  EXPECT_EQ(metrics::rouge_l(most, most), 1);
  EXPECT_EQ(metrics::rouge_l(most + "other", most), 1);
  EXPECT_EQ(metrics::rouge_l_sum(most + "other", most), 1);
  EXPECT_LT(metrics::rouge_l("other " + most, most), 1);
  EXPECT_LT(metrics::rouge_n(most + "other", most, 1), 1);
}

// The alignment by its definition: a table of lengths.
std::vector<std::pair<std::size_t, std::size_t>> naive_alignment(const std::vector<std::int32_t>& x,
                                                                 const std::vector<std::int32_t>& y) {
  std::vector<std::vector<int>> length(x.size() + 1, std::vector<int>(y.size() + 1, 0));
  for (std::size_t i = 1; i <= x.size(); ++i) {
    for (std::size_t j = 1; j <= y.size(); ++j) {
      length[i][j] = x[i - 1] == y[j - 1] ? length[i - 1][j - 1] + 1 : std::max(length[i - 1][j], length[i][j - 1]);
    }
  }
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = x.size(), j = y.size(); i > 0 && j > 0;) {
    if (x[i - 1] == y[j - 1]) {
      pairs.emplace_back(--i, --j);
    } else if (length[i - 1][j] > length[i][j - 1]) {
      --i;
    } else {
      --j;
    }
  }
  return pairs;
}

TEST(Lcs, AlignsAsTheTableDoes) {
  std::uint32_t state = 7;
  const auto draw = [&](std::uint32_t below) { return (state = state * 1664525 + 1013904223) / 65536 % below; };
  metrics::LcsAligner aligner;
  for (int round = 0; round < 400; ++round) {
    std::vector<std::int32_t> x(draw(200));
    std::vector<std::int32_t> y(draw(200));
    const std::uint32_t tokens = 1 + draw(20);
    for (std::int32_t& token : x) token = static_cast<std::int32_t>(draw(tokens));
    for (std::int32_t& token : y) token = static_cast<std::int32_t>(draw(tokens));
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const auto& pair : aligner.align(x, y)) pairs.emplace_back(pair.x, pair.y);
    ASSERT_EQ(pairs, naive_alignment(x, y)) << x.size() << " " << y.size();
  }
}

TEST(SequenceRatio, StopsWhenItsStepsAreSpent) {
  const std::string line = numbered("w", 500, " ");
  EXPECT_EQ(metrics::sequence_ratio(line, line), 1);
  EXPECT_EQ(metrics::sequence_ratio(line, line, 10), 0);
  EXPECT_EQ(metrics::sequence_ratio("", ""), 1);
  EXPECT_EQ(metrics::sequence_ratio("", "a"), 0);
}

TEST(ExactMatch, RefusesWrongExpressions) {
  const auto match = ExactMatch::create({.regexes_to_ignore = {"a", "(b"}});
  ASSERT_FALSE(match.ok());
  EXPECT_EQ(match.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(match.status().message().find("(b"), std::string::npos) << match.status().message();
  EXPECT_FALSE(RegexFilter::create({.pattern = "*"}).ok());
}

TEST(ExactMatch, EndsExpressionsThatBacktrackTooMuch) {
  const ExactMatch match = exact_match({.regexes_to_ignore = {"(a+)+$"}});
  const std::string text = std::string(40, 'a') + "b";
  const Strings references = {text};
  EXPECT_EQ(match.score({text, references, {}}), 1);
}

TEST(RegexFilter, SelectsAMatch) {
  const auto apply = [](RegexFilterOptions options, std::string_view text) {
    return RegexFilter::create(std::move(options))->apply(text);
  };
  EXPECT_EQ(apply({.pattern = "[0-9]+"}, "1 22 333"), "1");
  EXPECT_EQ(apply({.pattern = "[0-9]+", .group_select = -1}, "1 22 333"), "333");
  EXPECT_EQ(apply({.pattern = "[0-9]+", .group_select = 1}, "1 22 333"), "22");
  EXPECT_EQ(apply({.pattern = "[0-9]+", .group_select = 3}, "1 22 333"), "[invalid]");
  EXPECT_EQ(apply({.pattern = "[0-9]+", .group_select = -4, .fallback = "?"}, "1 22 333"), "?");
  EXPECT_EQ(apply({.pattern = " ([a-z]* )"}, "1 ab 2"), "ab");
  EXPECT_EQ(apply({.pattern = "(x)?(y)?z"}, "z"), "[invalid]");
  EXPECT_EQ(apply({.pattern = "(x)?(y)?z"}, "yz"), "y");
  EXPECT_EQ(apply({.pattern = "b*", .group_select = 1}, "abb"), "bb");
}

TEST(PythonText, Numbers) {
  using metrics::parse_float;
  using metrics::parse_int;
  EXPECT_EQ(parse_int(" +0012\n"), "12");
  EXPECT_EQ(parse_int("-0"), "0");
  EXPECT_EQ(parse_int("-1_000"), "-1000");
  EXPECT_EQ(parse_int("\u0664\u0662"), "42");
  EXPECT_EQ(parse_int(std::string(4300, '9')), std::string(4300, '9'));
  for (const std::string_view wrong : {"", "-", "+-1", "1__0", "_1", "1_", "1.0", "1 2", "0x1", "\u00B2"})
    EXPECT_EQ(parse_int(wrong), std::nullopt) << wrong;
  EXPECT_EQ(parse_int(std::string(4301, '9')), std::nullopt);
  EXPECT_EQ(parse_float(" -1_0.5e1 "), -105);
  EXPECT_EQ(parse_float(".5"), 0.5);
  EXPECT_EQ(parse_float("5."), 5);
  EXPECT_EQ(parse_float("+Infinity"), HUGE_VAL);
  EXPECT_EQ(parse_float("\u0663.\u0665"), 3.5);
  EXPECT_TRUE(std::isnan(parse_float("nan").value_or(0)));
  for (const std::string_view wrong :
       {"", ".", "e5", "1e", "+-1", "--1", "0x1p3", "nan(1)", "1_.5", "1._5", "1,5", "1 2"})
    EXPECT_EQ(parse_float(wrong), std::nullopt) << wrong;
}

TEST(PythonText, Words) {
  using metrics::split_words;
  EXPECT_EQ(split_words(" a\u00A0b\x1C\u3000"
                        "c\u200B"),
            (std::vector<std::string_view>{"a", "b", "c\u200B"}));
  EXPECT_EQ(metrics::strip("\u2028 a b \x1F"), "a b");
  EXPECT_EQ(metrics::lower("\u0130\u212A\u0416"), "i\u0307k\u0436");
  EXPECT_EQ(metrics::upper("stra\u00DFe \u00E9"), "STRASSE \u00C9");
  EXPECT_EQ(metrics::normalize_answer("The a-b, an\u00E9 AN a\u0301 (x_y)", true), "ab an\u00E9 \u0301 xy");
  EXPECT_EQ(metrics::normalize_answer("The the A", false), "The A");
}

TEST(Math, EquivalenceIsEqualityWhereTheOriginalRaises) {
  EXPECT_TRUE(metrics::is_math_equivalent("1/2", "\\frac{1}{2}"));
  EXPECT_TRUE(metrics::is_math_equivalent("x/y", "x/y"));
  EXPECT_FALSE(metrics::is_math_equivalent("x/y", "x / y"));
  EXPECT_FALSE(metrics::is_math_equivalent("5\\frac", "5 \\frac"));
  EXPECT_EQ(metrics::last_boxed("\\boxed{1} and \\boxed{\\frac{1}{2}}"), "\\frac{1}{2}");
  EXPECT_EQ(metrics::last_boxed("\\boxed{1"), std::nullopt);
}

}  // namespace
}  // namespace kvasir::test
