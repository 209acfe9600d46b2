// Answers the generated tasks from the text of their prompts alone, by reading and calculating.
#pragma once

#include <string>
#include <vector>

namespace kvasir::test {

// `prompt`: input and answer prefix of one turn, after the context. Returns the answers in the order of the question;
// in alphabetical order where the task asks for a set. Returns nothing, and fails the test, if the prompt is not as it
// should be, or if it has more than one answer.
std::vector<std::string> solve(const std::string& task, const std::string& prompt);

// Returns whether answers are a set: in any order.
bool any_order(const std::string& task);

}  // namespace kvasir::test
