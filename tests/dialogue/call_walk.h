// Random answers of a grammar that calls tools.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dialogue/call_grammar.h"
#include "grammar/configurations.h"
#include "grammar/machine.h"
#include "grammar/sources/json_text.h"

namespace kvasir::test {

// Walks through the grammar of answers to a request that demands a call, piece by piece, as a model with these pieces
// as tokens would. Control tokens are their names.
class CallWalk {
 public:
  explicit CallWalk(const AnswerRules& rules, const CallDemand& demand) {
    grammar::Builder builder;
    grammar::JsonText json(builder, grammar::JsonSpace::kBounded);
    const grammar::Rule root = builder.declare("the answer");
    const auto body = answer_grammar(json, rules, demand);
    EXPECT_TRUE(body.ok()) << body.status().message();
    if (!body.ok()) return;
    builder.define(root, *body);
    grammar::CompileBudget budget;
    auto machine = make_machine(
        builder, root, [](std::string_view name) { return std::string(name); }, budget);
    EXPECT_TRUE(machine.ok()) << machine.status().message();
    if (!machine.ok()) return;
    machine_ = std::make_unique<grammar::Machine>(std::move(*machine));
    add_pieces(rules);
  }

  // Returns an answer, or "" for one that did not come to an end.
  std::string draw(std::mt19937& random) {
    if (machine_ == nullptr) return "";
    constexpr int kMostPieces = 2000;
    constexpr std::size_t kSteps = 100'000'000;
    configurations_ = std::make_unique<grammar::Configurations>(*machine_);
    configurations_->grant(kSteps);
    std::string text;
    grammar::Configurations::Id at = configurations_->start();
    for (int step = 0; step < kMostPieces; ++step) {
      configurations_->grant(kSteps);
      std::vector<std::pair<std::string_view, grammar::Configurations::Id>> all, ending;
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const grammar::Configurations::Id to = behind(at, pieces_[i]);
        if (to == grammar::Configurations::kNone) continue;
        all.emplace_back(pieces_[i], to);
        if (i < endings_) ending.push_back(all.back());
      }
      // Within a mark of which only the start is a piece.
      for (int byte = 0; all.empty() && byte < 256; ++byte)
        if (const auto to = behind(at, bytes_[byte]); to != grammar::Configurations::kNone)
          all.emplace_back(bytes_[byte], to);
      EXPECT_FALSE(configurations_->exhausted()) << text;
      if (configurations_->exhausted()) return "";
      const bool may_end = (*configurations_)[at].complete;
      if (may_end && (all.empty() || random() % 3 == 0)) return text;
      EXPECT_FALSE(all.empty()) << "nothing can follow " << text;
      if (all.empty()) return "";
      // Free text tends to an end, the more the longer the answer is.
      const bool ends = !ending.empty() && all.size() > 40 && random() % 100 < (step < 100 ? 20U : 80U);
      const auto& from = ends ? ending : all;
      const auto& [piece, to] = from[random() % from.size()];
      text += piece;
      at = to;
    }
    return "";
  }

 private:
  grammar::Configurations::Id behind(grammar::Configurations::Id at, std::string_view piece) {
    for (const char c : piece) {
      if (at == grammar::Configurations::kNone) break;
      at = configurations_->step(at, machine_->class_of[static_cast<std::uint8_t>(c)]);
    }
    return at;
  }

  void add_pieces(const AnswerRules& rules) {
    const CallFormat& calls = rules.format.calls;
    // What ends texts comes first.
    const std::string channel_close = rules.format.channels ? "<|end|>" : "";
    for (const std::string& mark :
         {std::string("\""), std::string("<|\"|>"), calls.value_close, rules.format.thoughts.close, channel_close})
      if (!mark.empty()) pieces_.push_back(mark);
    endings_ = pieces_.size();
    for (const std::string& mark : {calls.section_open, calls.open, calls.close, calls.between, calls.section_close,
                                    calls.after_name, calls.key_open, calls.string_open, calls.other_open})
      if (!mark.empty()) pieces_.push_back(mark);
    for (const char* piece :
         {"\n",       "\n\n",       " ",       "\t",   "\r\n",  "\\n",  "\\\"", "\\\\", "\\u00e9", "\\ud83d\\ude00",
          "é",        "日本",       "😀",       "true", "false", "null", "True", "None", "12",      "-0.5",
          "e10",      "```",        "<|end|>", "</",   "<|",    "[/",   "}}",   "\"}",  "'",       "<think>",
          "</think>", "<|message|>"})
      pieces_.emplace_back(piece);
    for (char c = ' ' + 1; c < 0x7F; ++c) pieces_.emplace_back(1, c);
    for (int byte = 0; byte < 256; ++byte) bytes_.emplace_back(1, static_cast<char>(byte));
  }

  std::unique_ptr<grammar::Machine> machine_;
  std::unique_ptr<grammar::Configurations> configurations_;  // of the newest walk
  std::vector<std::string> pieces_;
  std::vector<std::string> bytes_;
  std::size_t endings_ = 0;  // the first of the pieces, which end texts
};

}  // namespace kvasir::test
