// Characters as bytes, and automata of bytes, against enumeration.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "grammar/automata/byte_automaton.h"
#include "grammar/automata/utf8_ranges.h"
#include "grammar/equivalence.h"
#include "grammar/grammar_support.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using namespace grammar;
using test::Follower;

bool in(const ByteRanges& ranges, std::string_view bytes) {
  if (static_cast<std::size_t>(ranges.size) != bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    if (byte < ranges.bytes[i].first || byte > ranges.bytes[i].last) return false;
  }
  return true;
}

TEST(GrammarUtf8, RangesMatchExactlyTheirCharacters) {
  std::mt19937 random(1);
  const char32_t corners[] = {0,      0x7F,   0x80,   0x7FF,  0x800,   0xFFF,   0x1000,  0xD7FF,
                              0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF};
  const auto pick = [&]() -> char32_t {
    const char32_t corner = corners[random() % std::size(corners)];
    return random() % 4 == 0 ? static_cast<char32_t>(random() % 0x110000)
                             : std::min<char32_t>(0x10FFFF, std::max(0, int(corner) + int(random() % 5) - 2));
  };
  for (int i = 0; i < 60; ++i) {
    char32_t first = pick(), last = pick();
    if (first > last) std::swap(first, last);
    const std::vector<ByteRanges> ranges = utf8_ranges({first, last});
    // Each character near a limit, and a sample of the others.
    for (char32_t c = 0; c <= 0x10FFFF; c += std::min(c > first + 70 || c + 70 < first ? 61U : 1U, 0x10FFFF - c + 1)) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      const std::string bytes = test::utf8(c);
      const auto count = std::count_if(ranges.begin(), ranges.end(), [&](const auto& each) { return in(each, bytes); });
      ASSERT_EQ(count, c >= first && c <= last ? 1 : 0)
          << std::hex << std::uint32_t{c} << " in " << std::uint32_t{first} << "-" << std::uint32_t{last};
    }
    const std::string surrogate = "\xED\xA0\x80";
    for (const ByteRanges& each : ranges) ASSERT_FALSE(in(each, surrogate));
  }
}

TEST(GrammarUtf8, AllCharactersAreAllValidUtf8) {
  Builder builder;
  Follower follower(builder, builder.any_char());
  for (char32_t c = 0; c <= 0x10FFFF; c += 7)
    if (c < 0xD800 || c > 0xDFFF) {
      ASSERT_TRUE(follower.matches(test::utf8(c))) << std::hex << std::uint32_t{c};
    }
  for (const char* wrong :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "ab", ""})
    EXPECT_FALSE(follower.matches(wrong)) << testing::PrintToString(std::string(wrong));
}

// All texts over an alphabet up to a length.
void each_text(std::string_view alphabet, std::size_t most, const std::function<void(const std::string&)>& visit) {
  std::vector<std::string> now = {""};
  for (std::size_t length = 0; length <= most; ++length) {
    std::vector<std::string> next;
    for (const std::string& text : now) {
      visit(text);
      for (const char c : alphabet) next.push_back(text + c);
    }
    now = std::move(next);
  }
}

ByteAutomaton random_automaton(std::mt19937& random, std::size_t states) {
  ByteAutomaton automaton;
  automaton.states.resize(states);
  for (ByteAutomaton::State& state : automaton.states) {
    state.accepts = random() % 3 == 0;
    for (const std::uint8_t c : {'a', 'b', 'c'})
      if (random() % 4 != 0) state.edges.push_back({c, c, static_cast<std::uint32_t>(random() % states)});
  }
  return automaton;
}

TEST(GrammarAutomata, ProductsAndDifferencesAreThoseOfTheirTexts) {
  std::mt19937 random(2);
  for (int i = 0; i < 40; ++i) {
    const ByteAutomaton first = random_automaton(random, 1 + random() % 5),
                        second = random_automaton(random, 1 + random() % 5);
    const auto both = product(first, second, false, 1000), less = product(first, second, true, 1000);
    ASSERT_TRUE(both.ok() && less.ok());
    const ByteAutomaton fewest = minimised(first);
    ASSERT_LE(fewest.states.size(), first.states.size());
    each_text("abc", 7, [&](const std::string& text) {
      ASSERT_EQ(both->matches(text), first.matches(text) && second.matches(text)) << text;
      ASSERT_EQ(less->matches(text), first.matches(text) && !second.matches(text)) << text;
      ASSERT_EQ(fewest.matches(text), first.matches(text)) << text;
    });
  }
}

TEST(GrammarAutomata, ProductsAreBounded) {
  std::mt19937 random(3);
  ByteAutomaton one = random_automaton(random, 300), other = random_automaton(random, 301);
  EXPECT_EQ(product(one, other, true, 50).status().code(), StatusCode::kResourceExhausted);
}

TEST(GrammarAutomata, TextsWithoutOthersAreFoundAsBySearch) {
  std::mt19937 random(4);
  for (int i = 0; i < 30; ++i) {
    std::vector<std::string> texts;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      std::string text;
      for (std::size_t size = 1 + random() % 4; size > 0; --size) text += "ab<"[random() % 3];
      texts.push_back(text);
    }
    const ByteAutomaton without = automaton_without({texts.begin(), texts.end()});
    each_text("ab<", 7, [&](const std::string& text) {
      const bool has = std::any_of(texts.begin(), texts.end(),
                                   [&](const std::string& each) { return text.find(each) != std::string::npos; });
      ASSERT_EQ(without.matches(text), !has) << text;
    });
    EXPECT_FALSE(without.matches("\x80"));
    EXPECT_FALSE(without.matches("\xC3"));
    EXPECT_TRUE(without.matches("\xC3\xA9"));
  }
}

TEST(GrammarAutomata, BuilderCombinesExpressions) {
  Builder builder;
  const Expr letters = builder.repeat(builder.one_of(std::array{CharRange{'a', 'c'}}), 0, Builder::kUnbounded);
  const Expr odd = builder.choice({builder.literal("abc"), builder.literal("c"), builder.literal("xyz")});
  Follower both(builder, builder.both(letters, odd)), without(builder, builder.without(letters, odd));
  for (const char* text : {"abc", "c"}) {
    EXPECT_TRUE(both.matches(text));
    EXPECT_FALSE(without.matches(text));
  }
  EXPECT_FALSE(both.matches("xyz"));
  EXPECT_FALSE(both.matches("ab"));
  EXPECT_TRUE(without.matches("ab"));
  EXPECT_TRUE(without.matches(""));
  EXPECT_FALSE(without.matches("xyz"));
  const Rule rule = builder.declare("other");
  builder.define(rule, builder.literal("a"));
  builder.both(builder.call(rule), letters);
  EXPECT_EQ(builder.failure().code(), StatusCode::kInvalidArgument);
}

TEST(GrammarAutomata, RepetitionsCount) {
  for (const auto& range : {std::pair(0, 0), {0, 1}, {0, 3}, {2, 2}, {2, 5}, {3, -1}, {0, -1}, {1, -1}, {1, 1}}) {
    const int least = range.first, most = range.second;
    Builder builder;
    Follower follower(builder,
                      builder.repeat(builder.choice({builder.literal("a"), builder.literal("bb")}), least, most));
    each_text("ab", 9, [&](const std::string& text) {
      int count = 0;
      bool whole = true;
      for (std::size_t i = 0; i < text.size(); ++count) {
        whole = whole && (text[i] == 'a' || text.substr(i, 2) == "bb");
        i += text[i] == 'a' ? 1 : 2;
      }
      ASSERT_EQ(follower.matches(text), whole && count >= least && (most < 0 || count <= most))
          << text << least << most;
    });
  }
}

// States as texts of bytes tell them apart, for Equivalence::depth.
bool alike(const Machine& machine, std::uint32_t a, std::uint32_t b, int depth) {
  const bool dead_a = a == Machine::kDead, dead_b = b == Machine::kDead;
  if (dead_a || dead_b) return dead_a == dead_b;
  const auto first = machine.calls_of(a), second = machine.calls_of(b);
  if (machine.states[a].accepts != machine.states[b].accepts ||
      !std::equal(first.begin(), first.end(), second.begin(), second.end()))
    return false;
  if (depth == 0) return true;
  for (int each = 0; each < machine.classes; ++each) {
    const auto at = [&](std::uint32_t state) {
      return machine
          .next[std::size_t{state} * static_cast<std::size_t>(machine.classes) + static_cast<std::size_t>(each)];
    };
    if (!alike(machine, at(a), at(b), depth - 1)) return false;
  }
  return true;
}

TEST(GrammarEquivalence, DepthsAreThoseOfAllTexts) {
  for (const char* regex : {"(ab|cd){1,3}x?", "[a-c]{0,4}", "a{2,6}b|c", "(a|b)*c(a|b){2}"}) {
    const auto machine = test::machine_of(test::regex_source(regex));
    ASSERT_TRUE(machine.ok());
    constexpr int kMost = 6;
    const Equivalence equivalence(*machine, kMost);
    for (std::uint32_t a = 0; a < machine->states.size(); ++a)
      for (std::uint32_t b = 0; b < machine->states.size(); ++b) {
        int depth = -1;
        while (depth < kMost && alike(*machine, a, b, depth + 1)) ++depth;
        const int found = equivalence.depth(a, b);
        ASSERT_LE(std::min(found, kMost), depth) << regex << " states " << a << ", " << b;  // never more than is true
        if (depth < kMost) {
          ASSERT_EQ(found, depth) << regex << " states " << a << ", " << b;
        }
      }
  }
}

}  // namespace
}  // namespace kvasir
