#include "chat/template_survey.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "chat/template_condition.h"
#include "chat/template_lexer.h"

namespace kvasir {
namespace {

using Verdict = TemplateCondition::Verdict;

constexpr std::size_t kLargest = std::size_t{1} << 18;

// Writes 'a'+'b' as 'ab', unless a filter or a method applies to the second literal alone.
TemplateTokens join_literals(TemplateTokens tokens) {
  TemplateTokens joined;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::size_t n = joined.size();
    const bool taken = i + 1 < tokens.size() && (tokens[i + 1].is_sign("|") || tokens[i + 1].text.starts_with('.'));
    if (tokens[i].kind == TemplateToken::Kind::kLiteral && !taken && n >= 2 && joined[n - 1].is_sign("+") &&
        joined[n - 2].kind == TemplateToken::Kind::kLiteral) {
      joined.pop_back();
      joined.back().text += tokens[i].text;
    } else {
      joined.push_back(std::move(tokens[i]));
    }
  }
  return joined;
}

// Keeps the items that a conversation can reach, and simplifies their conditions.
class Pruner {
 public:
  // Returns false if the heads and ends of branches do not match.
  bool run(std::vector<TemplateItem> items, std::vector<TemplateItem>* live) {
    for (TemplateItem& item : items) {
      const std::string word = item.statement && !item.tokens.empty() ? item.tokens[0].text : "";
      bool keep = !dead_;
      if (word == "if" || word == "elif") {
        if (word == "if") frames_.push_back({true, dead_, false, false, {}});
        if (frames_.empty() || !frames_.back().branches) return false;
        keep = enter(&item);
      } else if (word == "else") {
        if (frames_.empty()) return false;
        Frame& frame = frames_.back();
        dead_ = frame.outer_dead || frame.settled;
        keep = !dead_ && (!frame.branches || frame.opened);
      } else if (word == "for") {
        frames_.push_back({false, dead_, false, false, {}});
      } else if (word == "endif" || word == "endfor") {
        if (frames_.empty() || frames_.back().branches != (word == "endif")) return false;
        dead_ = frames_.back().outer_dead;
        keep = !dead_ && (!frames_.back().branches || frames_.back().opened);
        frames_.pop_back();
      } else if (word == "set" && is_idle(item.tokens)) {
        keep = false;
      }
      if (keep) live->push_back(std::move(item));
    }
    return frames_.empty();
  }

 private:
  struct Frame {
    bool branches;  // an if; otherwise a for
    bool outer_dead;
    bool opened;                    // a branch with a condition was kept
    bool settled;                   // a branch was kept that is always taken if no earlier one is
    std::set<std::string> earlier;  // conditions of earlier branches
  };

  // Enters a branch of an if; returns true if its head is kept.
  bool enter(TemplateItem* item) {
    Frame& frame = frames_.back();
    const TemplateCondition condition = simplify_condition({item->tokens.begin() + 1, item->tokens.end()});
    const bool taken_before = frame.earlier.contains(condition.text);
    dead_ = frame.outer_dead || frame.settled || condition.verdict == Verdict::kNever ||
            (condition.verdict == Verdict::kOpen && taken_before);
    if (dead_) return false;
    if (condition.verdict == Verdict::kAlways) {
      frame.settled = true;
      item->tokens = {{TemplateToken::Kind::kWord, "else"}};
      return frame.opened;
    }
    frame.earlier.insert(condition.alternatives.begin(), condition.alternatives.end());
    frame.earlier.insert(condition.text);
    item->tokens = {{TemplateToken::Kind::kWord, std::exchange(frame.opened, true) ? "elif" : "if"},
                    {TemplateToken::Kind::kCode, condition.text}};
    return true;
  }

  // True for a {%set%} whose value only tools use.
  static bool is_idle(const TemplateTokens& tokens) {
    static constexpr std::array<std::string_view, 6> kIdle = {
        "set tools=none",
        "set tools_in_user_message=true",
        "set tools_in_user_message=false",
        "set user_messages=loop_messages|selectattr('role','equalto','user')|list",
        "set ns.is_tool=false",
        "set ns.is_first=false"};
    return std::find(kIdle.begin(), kIdle.end(), text_of(tokens)) != kIdle.end();
  }

  std::vector<Frame> frames_;
  bool dead_ = false;
};

// Joins adjacent outputs into one.
std::vector<TemplateItem> join_outputs(std::vector<TemplateItem> items) {
  std::vector<TemplateItem> joined;
  for (TemplateItem& item : items) {
    if (item.statement || joined.empty() || joined.back().statement) {
      joined.push_back(std::move(item));
      continue;
    }
    TemplateTokens& tokens = joined.back().tokens;
    tokens.push_back({TemplateToken::Kind::kSign, "+"});
    std::move(item.tokens.begin(), item.tokens.end(), std::back_inserter(tokens));
  }
  return joined;
}

}  // namespace

std::optional<std::string> survey_template(std::string_view source) {
  if (source.size() > kLargest) return std::nullopt;
  std::vector<TemplateItem> items;
  if (!lex_template(source, &items)) return std::nullopt;
  std::vector<TemplateItem> live;
  if (!Pruner().run(std::move(items), &live)) return std::nullopt;
  std::string text;
  for (TemplateItem& item : join_outputs(std::move(live))) {
    const TemplateTokens tokens = join_literals(std::move(item.tokens));
    text += (item.statement ? "{%" : "{{") + text_of(tokens) + (item.statement ? "%}" : "}}");
  }
  return text;
}

}  // namespace kvasir
