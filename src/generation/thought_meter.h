// Counts the tokens of an answer's thoughts, and says when a budget of them is used up.
//
// Reads tokens as bytes, control tokens by name, and finds the marks between which the thoughts stand. A token counts
// if it has a byte of the thoughts, without the marks and the white space next to them. For the budget, tokens of white
// space count as well. Thread-safety: none; copies go on independently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/options.h"
#include "text/vocabulary.h"

namespace kvasir {

class ThoughtMeter {
 public:
  // `budget`: most tokens of thoughts; -1: no limit. REQUIRES: marks != nullptr, and neither they nor their `open` and
  // `closes` are empty.
  ThoughtMeter(std::shared_ptr<const ThoughtMarks> marks, std::int64_t budget);

  // Reads the answer's next token. `forced`: it was due().
  void read(std::string_view bytes, bool forced);

  // Returns the tokens of thoughts so far.
  std::int64_t tokens() const;
  // Returns the places, among the answer's tokens, of the first thoughts that have closed; the marks and tokens of
  // white space next to them do not belong to them. Nothing: none have.
  struct Span {
    std::int64_t begin = 0, end = 0;
  };
  std::optional<Span> closed() const { return closed_; }
  // Returns whether the newest token belongs to thoughts that have not closed.
  bool inside() const { return place_ == Place::kInside; }

  // Returns the token that must come next because the budget is used up; kNoToken: none. What has begun comes
  // first: other tokens of a character (`mid_character`: the answer ends inside one), or of a mark that may close them.
  TokenId due(bool mid_character) const;
  bool closing() const { return closing_ > 0; }  // some of closing_tokens() have come, and not all
  // Returns what ends the next thoughts for which the budget is used up.
  const std::vector<TokenId>& closing_tokens() const {
    return closed_once_ && !marks_->closing_again.empty() ? marks_->closing_again : marks_->closing;
  }
  // Returns how many bytes the next read() looks at again.
  std::size_t held() const { return buffer_.size(); }

 private:
  enum class Place {
    kBefore,  // only white space so far: thoughts may begin
    kInside,
    kPast,  // in other text
  };
  struct Piece {  // a token that is not counted yet, in buffer_
    std::size_t begin = 0, end = 0;
    std::int64_t place = 0;  // among the answer's tokens
  };

  bool step();
  bool enter();
  bool leave();
  std::size_t count(std::size_t end);
  void forget_spaces(std::size_t size);
  void forget(std::size_t size);

  std::shared_ptr<const ThoughtMarks> marks_;
  std::int64_t budget_ = -1;
  Place place_ = Place::kBefore;
  std::string buffer_;         // the newest bytes, which may belong to a mark; whole tokens of white space are left out
  std::vector<Piece> pieces_;  // the tokens of these bytes
  std::int64_t tokens_ = 0;    // counted
  std::int64_t spaces_ = 0;    // tokens of white space behind these, which count if the thoughts go on
  std::int64_t read_ = 0;      // all tokens of the answer
  Span newest_;                // the newest thoughts, as far as they are counted
  std::optional<Span> closed_;
  std::int64_t spent_ = 0;    // tokens that the budget counts
  bool solid_ = false;        // the newest thoughts are more than white space
  std::size_t closing_ = 0;   // so many of closing_tokens() have come
  bool closed_once_ = false;  // all of ThoughtMarks::closing has come
};

}  // namespace kvasir
