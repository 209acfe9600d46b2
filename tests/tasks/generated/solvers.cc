#include "tasks/generated/solvers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

namespace kvasir::test {
namespace {

using Strings = std::vector<std::string>;

Strings fail(const std::string& why) {
  ADD_FAILURE() << why;
  return {};
}

// The groups of each match; a group that took no part is empty.
std::vector<Strings> matches(const std::string& text, const std::string& expression) {
  const std::regex regex(expression);
  std::vector<Strings> all;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), regex); match != std::sregex_iterator(); ++match)
    all.emplace_back(match->begin(), match->end());
  return all;
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t begin = text.rfind(before);
  if (begin == std::string::npos) return {};
  const std::size_t from = begin + before.size();
  const std::size_t end = text.find(after, from);
  return end == std::string::npos ? std::string() : text.substr(from, end - from);
}

Strings needles(const std::string& prompt) {
  std::map<std::string, Strings> values;
  std::size_t lines = 0;
  for (const Strings& match :
       matches(prompt, "One of the special magic (?:numbers|uuids) for ([a-z0-9-]+) is: ([a-f0-9-]+)\\."))
    values[match[1]].push_back(match[2]);
  for (const auto& [key, several] : values) lines += several.size();
  EXPECT_GE(values.size() * 4, lines) << "the haystack repeats itself";
  std::string asked = between(prompt, " The special magic ", " mentioned in the provided text");
  const std::size_t at = asked.find(" for ");
  if (at == std::string::npos) return fail("no question");
  asked = asked.substr(at + 5);
  Strings answers;
  for (const Strings& match : matches(asked, "(?:and )?([a-z0-9-]+)(?:, |$)")) {
    if (!values.contains(match[1])) return fail("no needle for " + match[1]);
    for (const std::string& value : values[match[1]]) answers.push_back(value);
  }
  return answers;
}

Strings variables(const std::string& prompt) {
  const std::string text = prompt.substr(prompt.rfind("Memorize and track"));
  const std::string value = between(text, "Find all variables that are assigned the value ", " in the text above");
  std::map<std::string, std::string> values;
  Strings answers;
  for (const Strings& match : matches(text, "\nVAR ([A-Z]+) = (VAR )?([A-Z0-9]+)")) {
    if (!match[2].empty() && !values.contains(match[3])) return fail("unknown variable " + match[3]);
    values[match[1]] = !match[2].empty() ? values[match[3]] : match[3];
    if (values[match[1]] == value) answers.push_back(match[1]);
  }
  return answers;
}

// Returns the `count` most frequent words. Fails where the next one is as frequent.
Strings most_frequent(const std::map<std::string, int>& counts, std::size_t count) {
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [word, times] : counts) sorted.emplace_back(times, word);
  std::ranges::sort(sorted, std::greater());
  if (sorted.size() <= count) return fail("too few words");
  if (sorted[count - 1].first <= sorted[count].first) return fail("a tie of " + sorted[count].second);
  Strings answers;
  for (std::size_t i = 0; i < count; ++i) answers.push_back(sorted[i].second);
  return answers;
}

Strings common_words(const std::string& prompt) {
  std::istringstream list(between(prompt, "the ones that appear most often.\n", "\nQuestion:"));
  std::map<std::string, int> counts;
  std::string number;
  std::string word;
  for (int i = 1; list >> number >> word; ++i) {
    if (number != std::to_string(i) + ".") return fail("not number " + std::to_string(i) + ": " + number);
    ++counts[word];
  }
  return most_frequent(counts, 10);
}

Strings frequent_words(const std::string& prompt) {
  std::istringstream text(between(prompt, "frequently appeared coded words. ", "\nQuestion:"));
  std::map<std::string, int> counts;
  for (std::string word; text >> word;) ++counts[word];
  if (counts["..."] == 0) return fail("no dots");
  counts.erase("...");
  return most_frequent(counts, 3);
}

// What the documents say, by subject. `twice`: subjects with two documents.
struct Library {
  std::map<std::string, std::string> born_in, born_year, river, founder, author;
  std::map<std::string, std::string> document_of;
  std::set<std::string> twice;
};

Library read_documents(const std::string& prompt) {
  Library library;
  std::string rest = between(prompt, "The following are given documents.\n\n", "\n\nAnswer the question");
  int number = 0;
  while (!rest.empty()) {
    const std::string head = "Document " + std::to_string(++number) + ":\n";
    EXPECT_TRUE(rest.starts_with(head)) << rest.substr(0, 30);
    const std::size_t end = rest.find("\n\n");
    const std::string text = rest.substr(head.size(), end == std::string::npos ? end : end - head.size());
    rest = end == std::string::npos ? "" : rest.substr(end + 2);
    std::string subject;
    std::smatch match;
    if (std::regex_search(text, match,
                          std::regex("(\\w+ \\w+) was an? \\w+ who was born in (\\w+) in the year (\\d+)\\."))) {
      subject = match[1];
      library.born_in[subject] = match[2];
      library.born_year[subject] = match[3];
    } else if (std::regex_search(
                   text, match, std::regex("(\\w+) is a town on the river (\\w+); it was founded by (\\w+ \\w+)\\."))) {
      subject = match[1];
      library.river[subject] = match[2];
      library.founder[subject] = match[3];
    } else if (std::regex_search(text, match, std::regex("\"([\\w ]+)\" is an? [a-z ]+ by (\\w+ \\w+)\\."))) {
      subject = match[1];
      library.author[subject] = match[2];
    } else {
      ADD_FAILURE() << "a document on nothing: " << text;
    }
    if (library.document_of.contains(subject)) library.twice.insert(subject);
    library.document_of[subject] = text;
  }
  return library;
}

Strings documents(const std::string& prompt, bool two_hops) {
  Library library = read_documents(prompt);
  const std::string question = between(prompt, "Question: ", " Answer:");
  Strings subjects;  // whose documents the answer needs
  std::string answer;
  std::smatch match;
  const auto asks = [&](const char* expression) { return std::regex_match(question, match, std::regex(expression)); };
  if (asks("In which year was ([A-Z]\\w+ [A-Z]\\w+) born\\?")) {
    subjects = {match[1]};
    answer = library.born_year[match[1]];
  } else if (asks("In which town was ([A-Z]\\w+ [A-Z]\\w+) born\\?")) {
    subjects = {match[1]};
    answer = library.born_in[match[1]];
  } else if (asks("On which river is the town of (\\w+)\\?")) {
    subjects = {match[1]};
    answer = library.river[match[1]];
  } else if (asks("Who founded the town of (\\w+)\\?")) {
    subjects = {match[1]};
    answer = library.founder[match[1]];
  } else if (asks("Who is the author of \"(.+)\"\\?")) {
    subjects = {match[1]};
    answer = library.author[match[1]];
  } else if (asks("In which town was the author of \"(.+)\" born\\?")) {
    subjects = {match[1], library.author[match[1]]};
    answer = library.born_in[subjects[1]];
  } else if (asks("On which river is the town in which (\\w+ \\w+) was born\\?")) {
    subjects = {match[1], library.born_in[match[1]]};
    answer = library.river[subjects[1]];
  } else if (asks("In which year was the founder of (\\w+) born\\?")) {
    subjects = {match[1], library.founder[match[1]]};
    answer = library.born_year[subjects[1]];
  }
  if (answer.empty()) return fail("no answer to " + question);
  EXPECT_EQ(subjects.size(), two_hops ? 2u : 1u) << question;
  for (const std::string& subject : subjects) EXPECT_FALSE(library.twice.contains(subject)) << subject;
  if (two_hops) {
    EXPECT_EQ(library.document_of[subjects[0]].find(answer), std::string::npos) << "one hop answers " << question;
  }
  return {answer};
}

Strings key_values(const std::string& prompt) {
  const std::size_t end = prompt.find("}");
  const std::size_t begin = prompt.find("{");
  const auto json = nlohmann::json::parse(prompt.substr(begin, end - begin + 1), nullptr, false);
  if (!json.is_object()) return fail("not an object");
  Strings answers;
  const std::size_t question = prompt.rfind("\nKey");
  for (const Strings& match : matches(prompt.substr(question), "\"([0-9a-f-]+)\"")) {
    if (!json.contains(match[1])) return fail("no key " + match[1]);
    answers.push_back(json[match[1]]);
  }
  for (const auto& [key, value] : json.items())
    for (const std::string& uuid : {key, value.get<std::string>()})
      EXPECT_TRUE(
          std::regex_match(uuid, std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")))
          << uuid;
  return answers;
}

Strings passkey(const std::string& prompt) {
  Strings answers;
  for (const Strings& match :
       matches(prompt, "\nThe pass key is (\\d{5})\\. Remember it\\. (\\d{5}) is the pass key\\.\n")) {
    EXPECT_EQ(match[1], match[2]);
    answers.push_back(match[1]);
  }
  return answers;
}

Strings calculation(const std::string& prompt) {
  int value = 0;
  int step = 0;
  for (const Strings& match : matches(prompt, "Step (\\d+): (Start with|Add|Subtract|Multiply by) (\\d+)\\.")) {
    if (std::stoi(match[1]) != ++step) return fail("not step " + std::to_string(step));
    const int number = std::stoi(match[3]);
    if (match[2] == "Start with") {
      value = number;
    } else if (match[2] == "Multiply by") {
      value *= number;
    } else {
      value += match[2] == "Add" ? number : -number;
    }
  }
  EXPECT_TRUE(prompt.ends_with("The result after step " + std::to_string(step) + " is"));
  EXPECT_EQ(step, 8);
  return {std::to_string(value)};
}

Strings secret_number(const std::string& prompt) {
  const std::string fact = prompt.substr(prompt.rfind('\n'));
  Strings answers;
  for (const Strings& match : matches(prompt, fact + " (\\d{5})\\.\n")) answers.push_back(match[1]);
  return answers;
}

}  // namespace

bool any_order(const std::string& task) {
  return task == "niah_multivalue" || task == "cwe" || task == "fwe";
}

std::vector<std::string> solve(const std::string& task, const std::string& prompt) {
  Strings answers;
  if (task.starts_with("niah")) answers = needles(prompt);
  if (task == "vt") answers = variables(prompt);
  if (task == "cwe") answers = common_words(prompt);
  if (task == "fwe") answers = frequent_words(prompt);
  if (task.starts_with("qa")) answers = documents(prompt, task == "qa_2");
  if (task.starts_with("kv")) answers = key_values(prompt);
  if (task == "passkey") answers = passkey(prompt);
  if (task == "copying") answers = {between(prompt, "\n[PASSAGE] ", " [END]\n")};
  if (task == "arithmetic_chain") answers = calculation(prompt);
  if (task == "needle") answers = secret_number(prompt);
  if (any_order(task)) std::ranges::sort(answers);
  return answers;
}

}  // namespace kvasir::test
