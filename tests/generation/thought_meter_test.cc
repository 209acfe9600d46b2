// Counts of thoughts against their definition on whole texts, and budgets of them.
#include "generation/thought_meter.h"

#include <gtest/gtest.h>

#include <random>

#include "generation/generation.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::byte_tokens;

constexpr std::string_view kSpaces = " \t\r\n";

std::shared_ptr<const ThoughtMarks> marks_of(std::string open, std::vector<std::string> closes, bool opened,
                                             bool anywhere = false, std::vector<TokenId> closing = {}) {
  return std::make_shared<const ThoughtMarks>(
      ThoughtMarks{std::move(open), std::move(closes), opened, anywhere, std::move(closing)});
}

struct Thoughts {
  std::vector<bool> inside;                                   // of each byte
  std::optional<std::pair<std::size_t, std::size_t>> closed;  // bytes of the first that have closed
};

// Finds the thoughts of a text, one mark pair after the other, on the text as a whole.
Thoughts thoughts_in(const std::string& text, const ThoughtMarks& marks) {
  Thoughts found{std::vector<bool>(text.size(), false), {}};
  std::size_t at = 0;
  for (bool opened = marks.opened;; opened = false) {
    if (!opened) {
      std::size_t begin = marks.anywhere ? text.find(marks.open, at) : text.find_first_not_of(kSpaces, at);
      if (begin == std::string::npos || text.compare(begin, marks.open.size(), marks.open) != 0) return found;
      at = begin + marks.open.size();
    }
    std::size_t end = text.size(), next = text.size();
    for (const std::string& close : marks.closes)
      if (const std::size_t here = text.find(close, at); here < end) {
        end = here;
        next = marks.anywhere ? here : here + close.size();
      }
    std::size_t first = text.find_first_not_of(kSpaces, at);
    const std::size_t last = end == 0 ? std::string::npos : text.find_last_not_of(kSpaces, end - 1);
    if (first < end && last != std::string::npos) {
      if (end < text.size() && !found.closed) found.closed.emplace(first, last + 1);
      for (; first <= last; ++first) found.inside[first] = true;
    }
    if (end == text.size()) return found;
    at = next;
  }
}

TEST(ThoughtMeter, CountsAsTheWholeTextSays) {
  const std::shared_ptr<const ThoughtMarks> all[] = {marks_of("<t>", {"</t>"}, false), marks_of("<t>", {"</t>"}, true),
                                                     marks_of("<<t", {"t>t>"}, true),
                                                     marks_of("<c>t<m>", {"<e>", "<s>", "<c>"}, false, true)};
  const std::string_view parts[] = {"<t>",     "</t>", "<",   "</", "t>", "t>t>", "<<t",
                                    "<c>t<m>", "<e>",  "<c>", " ",  "\n", "a",    "bc"};
  std::mt19937 random(5);
  std::int64_t counted = 0, closed = 0, several = 0;
  for (int round = 0; round < 20'000; ++round) {
    const ThoughtMarks& marks = *all[round % 4];
    std::string text;
    for (auto left = 1 + random() % 12; left > 0; --left) text += parts[random() % std::size(parts)];
    ThoughtMeter meter(all[round % 4], -1);
    std::vector<std::size_t> ends;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % (round % 5 == 0 ? 16 : 4), text.size() - at);
      meter.read(std::string_view(text).substr(at, size), false);
      ends.push_back(at += size);
    }
    const Thoughts thoughts = thoughts_in(text, marks);
    std::int64_t expected = 0, begun = 0, ended = 0;
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      bool any = false;
      if (thoughts.closed && end <= thoughts.closed->first) ++begun;
      if (thoughts.closed && begin < thoughts.closed->second) ++ended;
      for (; begin < end; ++begin) any |= thoughts.inside[begin];
      expected += any ? 1 : 0;
    }
    ASSERT_EQ(meter.tokens(), expected) << text << ", marks " << round % 4;
    counted += expected;
    const std::optional<ThoughtMeter::Span> span = meter.closed();
    ASSERT_EQ(span.has_value(), thoughts.closed.has_value()) << text << ", marks " << round % 4;
    if (!span) continue;
    ASSERT_EQ(std::pair(span->begin, span->end), std::pair(begun, ended)) << text << ", marks " << round % 4;
    ++closed;
    several += expected > ended - begun ? 1 : 0;
  }
  EXPECT_GT(counted, 20'000);
  EXPECT_GT(closed, 2'000);
  EXPECT_GT(several, 200) << "answers with further thoughts";
}

TEST(ThoughtMeter, LongWhiteSpaceStaysCheap) {
  constexpr int kSpace = 200'000;
  const auto read_space = [](ThoughtMeter& meter) {
    std::size_t held = 0;
    for (int i = 0; i < kSpace; ++i) {
      meter.read("\n", false);
      held = std::max(held, meter.held());
    }
    EXPECT_LE(held, 1u);
  };
  for (const bool opened : {true, false}) {
    ThoughtMeter meter(marks_of("<t>", {"</t>"}, opened), -1);
    read_space(meter);
    EXPECT_EQ(meter.tokens(), 0);
    if (!opened) meter.read("<t>", false);
    meter.read("x", false);
    EXPECT_EQ(meter.tokens(), 1);
    read_space(meter);
    EXPECT_EQ(meter.tokens(), 1);
    meter.read("x", false);
    EXPECT_EQ(meter.tokens(), kSpace + 2);
    meter.read("</t>", false);
    ASSERT_TRUE(meter.closed());
    EXPECT_EQ(meter.closed()->end - meter.closed()->begin, kSpace + 2);
  }
}

// Draws 'x' alone, unless told otherwise, from a vocabulary of bytes.
struct Thinking {
  explicit Thinking(std::int64_t budget, bool opened, std::string closing = "\n</t>\n") {
    options.thoughts = marks_of("<t>", {"</t>"}, opened, false, byte_tokens(closing));
    options.thought_budget = budget;
    options.sampling.temperature = 0;
    options.max_tokens = 40;
  }
  Generation begin() const { return {*tokenizer, options, {}, {}}; }
  // Continues with the bytes of `wanted`, in order, and then with 'x', as long as the answer goes on.
  static void run(Generation& generation, std::string_view wanted) {
    std::size_t at = 0;
    while (true) {
      const TokenId next = at < wanted.size() ? test::byte_token(wanted[at]) : test::byte_token('x');
      std::vector<float> logits(259, 0.0F);
      logits[static_cast<std::size_t>(next)] = 1.0F;
      const auto token = generation.push(logits);
      ASSERT_TRUE(token.ok());
      if (!*token) return;
      if (**token == next) ++at;
      generation.accept(**token);
    }
  }

  std::unique_ptr<Tokenizer> tokenizer = test::tokenizer_of(test::byte_vocabulary());
  GenerateOptions options;
};

TEST(ThoughtBudget, ClosesThoughtsAndGoesOn) {
  const Thinking opened(5, true);
  Generation generation = opened.begin();
  Thinking::run(generation, "");
  EXPECT_EQ(generation.text(), "xxxxx\n</t>\n" + std::string(29, 'x'));
  EXPECT_EQ(generation.result().thought_tokens, 5);
  EXPECT_EQ(generation.tokens(), 40);
  const Thinking opens(3, false);
  Generation own = opens.begin();
  Thinking::run(own, " <t> abcdefg");
  EXPECT_EQ(own.text().substr(0, 20), " <t> ab\n</t>\ncdefgxx");
  EXPECT_EQ(own.result().thought_tokens, 2);  // the budget counts the space, too
  // Thoughts that close in time, and text without any, are left alone.
  for (const char* text : {"abc</t>defgh", "ab"}) {
    const Thinking thinking(5, text[2] == 'c');
    Generation left = thinking.begin();
    Thinking::run(left, text);
    EXPECT_EQ(left.text().substr(0, std::string_view(text).size()), text);
    EXPECT_EQ(left.text().find('\n'), std::string::npos);
  }
}

TEST(ThoughtBudget, HoldsForLaterThoughtsTogether) {
  const Thinking thinking(4, true, "</t>");
  Generation generation = thinking.begin();
  Thinking::run(generation, "abc</t><t>defg");
  EXPECT_EQ(generation.text().substr(0, 18), "abc</t><t>d</t>efg");
}

// Marks as in the channels of gpt-oss: the second closing ends thoughts that open again.
TEST(ThoughtBudget, MarksAnywhereCloseForGoodTheSecondTime) {
  Thinking thinking(2, false);
  ThoughtMarks marks{"<a>", {"<e>", "<s>"}, false, true, byte_tokens("<e>S")};
  marks.closing_again = byte_tokens("<e>F");
  thinking.options.thoughts = std::make_shared<const ThoughtMarks>(marks);
  Generation generation = thinking.begin();
  Thinking::run(generation, "hi<a>bcd<a>g<a>h");
  EXPECT_EQ(generation.text().substr(0, 30), "hi<a>bc<e>Sd<a><e>Fg<a><e>Fhxx");
  EXPECT_EQ(generation.result().thought_tokens, 2);
  thinking.options.thought_budget = 0;
  Generation none = thinking.begin();
  Thinking::run(none, "<a>bc<a>d");
  EXPECT_EQ(none.text().substr(0, 18), "<a><e>Sbc<a><e>Fdx");
  EXPECT_EQ(none.result().thought_tokens, 0);
}

TEST(ThoughtBudget, WaitsForTheEndOfACharacter) {
  const Thinking thinking(2, true);
  Generation generation = thinking.begin();
  Thinking::run(generation, "a\xF0\x9F\x98\x80zz");
  EXPECT_EQ(generation.text().substr(0, 11), "a\xF0\x9F\x98\x80\n</t>\n");
  // Bytes that never become a character end, too.
  Generation damaged = thinking.begin();
  Thinking::run(damaged, "\xF0\xF0\xF0\xF0\xF0\xF0\xF0\xF0");
  EXPECT_NE(damaged.text().find("</t>"), std::string::npos);
}

TEST(ThoughtBudget, IsPartOfTheStateAndOfCopies) {
  const Thinking thinking(6, true);
  Generation whole = thinking.begin();
  Thinking::run(whole, "");
  for (int steps = 0; steps < 20; ++steps) {
    Generation first = thinking.begin();
    const std::vector<float> logits = [] {
      std::vector<float> values(259, 0.0F);
      values[static_cast<std::size_t>(test::byte_token('x'))] = 1.0F;
      return values;
    }();
    for (int i = 0; i < steps; ++i) first.accept(**first.push(logits));
    // A token that was chosen and given up is chosen again.
    Generation dropped = first;
    ASSERT_TRUE(dropped.push(logits).ok());
    dropped.finish(FinishReason::kCancelled);
    ASSERT_TRUE(first.push(logits).ok());
    Result<Generation> again = Generation::from_state(*thinking.tokenizer, first.state());
    ASSERT_TRUE(again.ok());
    again->accept(*again->pending());
    Thinking::run(*again, "");
    EXPECT_EQ(again->text(), whole.text()) << steps;
    EXPECT_EQ(again->result().thought_tokens, 6);
  }
}

TEST(ThoughtBudget, StopsAndLimitsCountAsEver) {
  Thinking thinking(3, true);
  thinking.options.max_tokens = 5;
  Generation cut = thinking.begin();
  Thinking::run(cut, "");
  EXPECT_EQ(cut.text(), "xxx\n<");
  EXPECT_EQ(cut.finish_reason(), FinishReason::kLength);
  thinking.options.stop_tokens = {test::byte_token('<')};
  thinking.options.max_tokens = 40;
  Generation stopped = thinking.begin();
  Thinking::run(stopped, "");
  EXPECT_EQ(stopped.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(stopped.text(), "xxx\n");
  thinking.options.stop_tokens.clear();
  thinking.options.logprobs = 1;
  Generation described = thinking.begin();
  Thinking::run(described, "");
  ASSERT_EQ(described.choices().size(), 40u);
  EXPECT_EQ(described.choices()[3].token.bytes, "\n");
  EXPECT_LT(described.choices()[3].token.log_probability, described.choices()[2].token.log_probability);
}

TEST(ThoughtBudget, WrongMarksAndBudgetsAreRefused) {
  GenerateOptions options;
  options.thought_budget = -2;
  EXPECT_EQ(validate(options, 259).settings().front(), "thought_budget");
  options.thought_budget = 1;
  EXPECT_TRUE(validate(options, 259).ok());
  options.thoughts = marks_of("", {"x"}, false);
  EXPECT_EQ(validate(options, 259).code(), StatusCode::kInvalidArgument);
  options.thoughts = marks_of("x", {""}, false);
  EXPECT_EQ(validate(options, 259).code(), StatusCode::kInvalidArgument);
  options.thoughts = marks_of("x", {"y"}, false, false, {259});
  EXPECT_EQ(validate(options, 259).code(), StatusCode::kInvalidArgument);
  ThoughtMarks again{"x", {"y"}};
  again.closing_again = {259};
  options.thoughts = std::make_shared<const ThoughtMarks>(std::move(again));
  EXPECT_EQ(validate(options, 259).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
