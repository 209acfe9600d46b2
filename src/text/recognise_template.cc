#include "text/recognise_template.h"

#include <array>
#include <utility>

#include "text/canonical_cursor.h"
#include "text/template_survey.h"

namespace kvasir {
namespace {

using Terms = std::vector<TemplateTerm>;

// What stands around `content` in a concatenation. nullopt where anything else but literals, BOS and EOS does.
std::optional<ChatForm> form_around(const Terms& terms, std::string_view content, const TemplateNames& names) {
  ChatForm form;
  bool found = false;
  for (const TemplateTerm& term : terms) {
    std::string& side = found ? form.after : form.before;
    if (!term.literal && term.text == content && !found) {
      form.strip = term.strip;
      found = true;
      continue;
    }
    if (term.strip) return std::nullopt;
    if (term.literal) {
      side += term.text;
    } else if (term.text == "eos_token") {
      side += names.eos;
    } else {
      return std::nullopt;
    }
  }
  if (!found) return std::nullopt;
  return form;
}

// The same with the role's name for message.role.
Terms with_role(Terms terms, std::string_view role) {
  for (TemplateTerm& term : terms)
    if (!term.literal && term.text == "message.role" && !term.strip) term = {true, std::string(role), false};
  return terms;
}

// Reads templates that go over the messages once and write each between two texts: nearly all there are. Any part that
// is not one of the known ones makes it give up.
class GeneralReader {
 public:
  GeneralReader(std::string_view text, const TemplateNames& names) : cursor_(text), names_(names) {}

  std::optional<ChatFormat> read() {
    if (!read_start() || !read_loop() || !read_end() || !cursor_.at_end() || !settle_system()) return std::nullopt;
    return std::move(format_);
  }

 private:
  // Before the loop.
  bool read_start() {
    format_.bos = cursor_.take("{{bos_token}}");
    bool dated = cursor_.take("{%set date_string='*'%}", {&date_});
    if (!dated && cursor_.take("{%set date_string=strftime_now('%d %b %Y')%}")) date_ = names_.today, dated = true;
    if (cursor_.take("{%if messages[0].role=='system'%}") && !read_system()) return false;
    if (dated && !read_dated_header()) return false;
    if (cursor_.take("{%set loop_messages=messages%}")) loop_ = "loop_messages";
    if (cursor_.take("{%set ns=namespace()%}{%set ns.index=0%}{%for message in " + loop_ +
                     "%}{%if (message.role=='user')!=(ns.index%2==0)%}{{raise_exception('*')}}{%endif%}"
                     "{%set ns.index=ns.index+1%}{%endfor%}"))
      format_.alternate = true;
    if (!format_.bos) format_.bos = cursor_.take("{{bos_token}}");
    return true;
  }

  // What is done with a system message that starts the conversation.
  bool read_system() {
    if (cursor_.take("{{raise_exception('*')}}{%endif%}")) {
      refused_ = true;
      return true;
    }
    if (cursor_.take("{{")) return read_leading_system();
    bool sliced = false;
    bool named = false;
    for (;;) {
      if (cursor_.take("{%set loop_messages=messages[1:]%}")) {
        loop_ = "loop_messages";
        sliced = true;
      } else if (named && cursor_.take("{%set messages=messages[1:]%}")) {
        loop_ = "messages";
        sliced = true;
      } else if (cursor_.take("{%set system_message=messages[0].content|trim%}")) {
        strip_system_ = named = true;
      } else if (cursor_.take("{%set system_message=messages[0].content%}")) {
        strip_system_ = false;
        named = true;
      } else {
        break;
      }
    }
    split_ = sliced && named && read_no_system() && cursor_.take("{%endif%}");
    return split_;
  }

  // What is done without one.
  bool read_no_system() {
    bool same = loop_ == "messages";
    if (cursor_.take("{%else%}")) {
      for (;;) {
        if (cursor_.take("{%set loop_messages=messages%}")) {
          same = true;
        } else if (cursor_.take("{%set system_message=false%}")) {
          no_system_ = "false";
        } else if (cursor_.take("{%set system_message=''%}")) {
          no_system_ = "''";
        } else {
          break;
        }
      }
    }
    return same;
  }

  bool read_leading_system() {
    const auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    leading_ = form_around(*terms, "messages[0].content", names_);
    std::string text;
    if (cursor_.take("{%else%}{{'*'}}", {&text}) && !read_default(text)) return false;
    return leading_ && cursor_.take("{%endif%}");
  }

  // A system message that is written whether there is one or not, with dates in it.
  bool read_dated_header() {
    if (!split_ || no_system_ != "''" || !cursor_.take("{{")) return false;
    auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    for (TemplateTerm& term : *terms)
      if (!term.literal && term.text == "date_string" && !term.strip) term = {true, date_, false};
    leading_ = form_around(*terms, "system_message", names_);
    if (!leading_ || leading_->strip) return false;
    leading_->strip = strip_system_;
    format_.default_system = "";
    return true;
  }

  // A whole system message as a literal; settle_system() finds what is said in it.
  bool read_default(const std::string& text) {
    if (default_) return false;
    default_ = text;
    return true;
  }

  bool read_loop() {
    if (!cursor_.take("{%for message in " + loop_ + "%}")) return false;
    if (cursor_.take("{%if (message.role=='user')!=(loop.index0%2==0)%}{{raise_exception('*')}}{%endif%}"))
      format_.alternate = true;
    std::string text;
    if (cursor_.take("{%if loop.first and messages[0].role!='system'%}{{'*'}}{%endif%}", {&text})) {
      if (!read_default(text)) return false;
      in_loop_ = true;
    }
    if (cursor_.take("{%set content=message.content%}")) content_ = "content";
    if (!read_fold() || !read_body()) return false;
    if (cursor_.take("{%if loop.last and add_generation_prompt%}{{'*'}}{%endif%}", {&format_.open})) opened_ = true;
    return cursor_.take("{%endfor%}");
  }

  // The system message inside the first user message, for all that follows.
  bool read_fold() {
    if (!cursor_.take(
            "{%if loop.index0==0 and system_message!=false%}{%set content='*'+system_message+'*'+message.content"
            "%}{%else%}{%set content=message.content%}{%endif%}",
            {&format_.fold_before, &format_.fold_after}))
      return true;
    if (!split_ || no_system_ != "false" || strip_system_ || content_ == "content") return false;
    content_ = "content";
    format_.system_place = SystemPlace::kFirstUser;
    folded_ = true;
    return true;
  }

  bool read_body() {
    if (cursor_.take("{%if message.role=='user' or message.role=='system' and not loop.first or "
                     "message.role=='assistant'%}")) {
      skips_first_ = true;
      return read_named_body() && cursor_.take("{%endif%}");
    }
    if (cursor_.take("{%if message.role=='user' or message.role=='system' and not loop.first%}")) {
      skips_first_ = true;
      return read_named_body() && cursor_.take("{%elif message.role=='assistant'%}") && read_assistant_apart() &&
             cursor_.take("{%endif%}");
    }
    if (cursor_.take("{%set content=")) return read_stored_body();
    if (cursor_.take("{%if message.role=='assistant'%}{%set role='*'%}{%else%}{%set role=message.role%}{%endif%}",
                     {&assistant_name_}))
      return read_named_body();
    return read_named_body() || read_branches();
  }

  // {{'...'+message.role+'...'+message.content+'...'}}
  bool read_named_body() {
    const CanonicalCursor before = cursor_;
    if (cursor_.take("{{"))
      if (auto terms = cursor_.take_terms(); terms && cursor_.take("}}") && take_named_forms(std::move(*terms)))
        return true;
    cursor_ = before;
    return false;
  }

  bool read_assistant_apart() {
    if (!cursor_.take("{{")) return false;
    auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    const auto form = form_around(with_role(std::move(*terms), "assistant"), content_, names_);
    if (form) format_.assistant = *form;
    return form.has_value();
  }

  // The same, with BOS before the first.
  bool read_stored_body() {
    auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("%}{%if loop.index0==0%}{%set content=bos_token+content%}{%endif%}{{content}}"))
      return false;
    if (std::exchange(format_.bos, true)) return false;
    return take_named_forms(std::move(*terms));
  }

  bool take_named_forms(Terms terms) {
    for (TemplateTerm& term : terms)
      if (!term.literal && term.text == "role" && !assistant_name_.empty()) term.text = "message.role";
    const std::string assistant = assistant_name_.empty() ? "assistant" : assistant_name_;
    const auto user = form_around(with_role(terms, "user"), content_, names_);
    if (!user) return false;
    format_.user = *user;
    format_.assistant = *form_around(with_role(terms, assistant), content_, names_);
    format_.late_system = *form_around(with_role(terms, "system"), content_, names_);
    has_system_form_ = true;
    return true;
  }

  // One branch for each role.
  bool read_branches() {
    for (const char* word : {"{%if ", "{%elif ", "{%elif "}) {
      if (cursor_.take(std::string(word) + "message.role=='user'%}")) {
        if (!read_user()) return false;
      } else if (cursor_.take(std::string(word) + "message.role=='assistant'%}")) {
        if (!read_output(&format_.assistant)) return false;
      } else if (cursor_.take(std::string(word) + "message.role=='system' and message.content%}")) {
        format_.skip_empty_system = true;
        has_system_form_ = true;
        if (!read_output(&format_.late_system)) return false;
      } else if (cursor_.take(std::string(word) + "message.role=='system'%}")) {
        has_system_form_ = true;
        if (!read_output(&format_.late_system)) return false;
      } else {
        break;
      }
    }
    format_.late = has_system_form_ ? LateSystem::kOwnMessage : LateSystem::kDropped;
    if (cursor_.take("{%else%}{{raise_exception('*')}}")) {
      if (has_system_form_) return false;
      format_.late = LateSystem::kRefused;
    }
    // Some form was read for both: none is written without anything around it.
    return cursor_.take("{%endif%}") && !(format_.user.before + format_.user.after).empty() &&
           !(format_.assistant.before + format_.assistant.after).empty();
  }

  bool read_output(ChatForm* form) {
    if (!cursor_.take("{{")) return false;
    const auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    const auto found = form_around(*terms, content_, names_);
    if (found) *form = *found;
    return found.has_value();
  }

  bool read_user() {
    const bool last = cursor_.take("{%if loop.last and system_message is defined%}");
    if (last || cursor_.take("{%if loop.first and system_message is defined%}")) return read_folding_user(last);
    if (cursor_.take("{{bos_token+")) {
      const auto terms = cursor_.take_terms();
      const auto form = terms ? form_around(*terms, content_, names_) : std::nullopt;
      if (!form || format_.bos || !cursor_.take("}}")) return false;
      format_.user = *form;
      format_.bos_again = true;
      return true;
    }
    return read_output(&format_.user);
  }

  // The user message that holds the system message, and one that holds none.
  bool read_folding_user(bool last) {
    std::string before;
    std::string between;
    std::string after;
    if (!split_ || !no_system_.empty() || strip_system_ ||
        !cursor_.take("{{'*'+system_message+'*'+message.content+'*'}}{%else%}", {&before, &between, &after}) ||
        !read_output(&format_.user) || !cursor_.take("{%endif%}"))
      return false;
    const ChatForm& user = format_.user;
    if (user.strip || !before.starts_with(user.before) || after != user.after) return false;
    format_.fold_before = before.substr(user.before.size());
    format_.fold_after = between;
    format_.system_place = last ? SystemPlace::kLastUser : SystemPlace::kFirstUser;
    folded_ = true;
    return true;
  }

  // After the loop.
  bool read_end() {
    if (!opened_ && cursor_.take("{%if add_generation_prompt%}{{'*'}}", {&format_.open})) {
      std::string more;
      if (cursor_.take("{%if not enable_thinking%}{{'*'}}{%endif%}", {&more})) format_.open += more;
      if (cursor_.take("{%else%}{{eos_token}}")) format_.final = names_.eos;
      return cursor_.take("{%endif%}");
    }
    // The first Llama 3 opens an answer whether it is asked to or not.
    if (!opened_ && format_.final.empty() && cursor_.take("{{'*'}}", {&format_.open})) format_.final = format_.open;
    return true;
  }

  // Where the first system message goes, from all that was read of it.
  bool settle_system() {
    if (refused_) {
      format_.system_place = SystemPlace::kRefused;
      return !split_ && !leading_ && !default_;
    }
    // Stripped together with the user's, a system message is only known to stand whole behind some text.
    if (folded_ && format_.user.strip && (format_.fold_before.empty() || format_.fold_before[0] <= ' ')) return false;
    if (folded_) return !leading_ && !default_ && !has_system_form_;
    // Taken out of the messages or passed over by the loop, it must have been written before.
    if ((split_ || skips_first_) != leading_.has_value()) return false;
    if (!has_system_form_) {
      format_.system_place = SystemPlace::kDropped;
      if (format_.late == LateSystem::kRefused) format_.system_place = SystemPlace::kRefused;
      return !leading_ && !default_;
    }
    format_.system = leading_ ? *leading_ : format_.late_system;
    if (!default_) return true;
    const ChatForm& form = format_.system;
    if (default_->size() < form.before.size() + form.after.size() || !default_->starts_with(form.before) ||
        !default_->ends_with(form.after) || format_.default_system || (in_loop_ && leading_))
      return false;
    format_.default_system =
        default_->substr(form.before.size(), default_->size() - form.before.size() - form.after.size());
    return true;
  }

  CanonicalCursor cursor_;
  const TemplateNames& names_;
  ChatFormat format_;
  std::string loop_ = "messages";            // what the loop goes over
  std::string content_ = "message.content";  // what a message says, in the loop
  std::string assistant_name_;               // where it is not "assistant"
  std::string date_;
  std::optional<ChatForm> leading_;     // a system message written before the loop
  std::optional<std::string> default_;  // or a literal one instead
  bool split_ = false;                  // the system message is taken out of the messages
  std::string no_system_;               // what system_message is without one, if it is defined
  bool strip_system_ = false;
  bool skips_first_ = false;  // the loop passes over it
  bool in_loop_ = false;      // the literal one is written there
  bool folded_ = false;       // it goes into a user message
  bool refused_ = false;
  bool has_system_form_ = false;  // the loop has a form for it
  bool opened_ = false;
};

// The rest are templates with ways of their own.

constexpr std::string_view kImSystem =
    "{%if messages[0].role=='system'%}{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%endif%}";
constexpr std::string_view kImLoop =
    "{%for message in messages%}{%if message.role=='user' or message.role=='system' and not loop.first%}"
    "{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}"
    "{%elif message.role=='assistant'%}{%set content=message.content%}";

// The two ways to take the thoughts of an answer from it.
constexpr std::string_view kThoughtsApart =
    "{%set reasoning_content=''%}{%if '</think>' in message.content%}"
    "{%set content=message.content.split('</think>')[-1].lstrip('\n')%}{%set reasoning_content="
    "message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')%}{%endif%}";
constexpr std::string_view kImLoopWithThoughtsApart =
    "{%for message in messages%}{%set content=message.content%}"
    "{%if message.role=='user' or message.role=='system' and not loop.first%}"
    "{{'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'}}"
    "{%elif message.role=='assistant'%}{%set reasoning_content=''%}{%if '</think>' in content%}"
    "{%set reasoning_content=content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')%}"
    "{%set content=content.split('</think>')[-1].lstrip('\n')%}{%endif%}";

ChatFormat im_format() {
  ChatFormat format;
  format.system = format.late_system = {"<|im_start|>system\n", "<|im_end|>\n"};
  format.user = {"<|im_start|>user\n", "<|im_end|>\n"};
  format.assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"};
  return format;
}

// {%if add_generation_prompt%}...: what opens an answer while enable_thinking is undefined.
bool take_open(CanonicalCursor* cursor, std::string* open) {
  std::string more;
  if (!cursor->take("{%if add_generation_prompt%}{{'*'}}", {open})) return false;
  if (cursor->take("{%if not enable_thinking%}{{'*'}}{%endif%}", {&more})) *open += more;
  return cursor->take("{%endif%}") && cursor->at_end();
}

std::optional<ChatFormat> read_qwen3(std::string_view text, const TemplateNames& /*names*/) {
  CanonicalCursor cursor(text);
  ChatFormat format = im_format();
  format.name = "qwen3";
  format.thoughts = Thoughts::kOfThisTurn;
  if (!cursor.take(kImSystem) ||
      !cursor.take("{%set ns=namespace(multi_step_tool=true,last_query_index=messages|length-1)%}"
                   "{%for message in messages[::-1]%}{%set index=(messages|length-1)-loop.index0%}"
                   "{%if ns.multi_step_tool and message.role=='user' and not(message.content.startswith("
                   "'<tool_response>') and message.content.endswith('</tool_response>'))%}"
                   "{%set ns.multi_step_tool=false%}{%set ns.last_query_index=index%}{%endif%}{%endfor%}") ||
      (!cursor.take(kImLoopWithThoughtsApart) && (!cursor.take(kImLoop) || !cursor.take(kThoughtsApart))) ||
      !cursor.take("{%if loop.index0>ns.last_query_index%}{%if loop.last or not loop.last and reasoning_content%}"
                   "{{'<|im_start|>'+message.role+'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+"
                   "content.lstrip('\n')}}{%else%}{{'<|im_start|>'+message.role+'\n'+content}}{%endif%}{%else%}"
                   "{{'<|im_start|>'+message.role+'\n'+content}}{%endif%}{{'<|im_end|>\n'}}{%endif%}{%endfor%}") ||
      !take_open(&cursor, &format.open))
    return std::nullopt;
  return format;
}

std::optional<ChatFormat> read_qwq(std::string_view text, const TemplateNames& /*names*/) {
  CanonicalCursor cursor(text);
  ChatFormat format = im_format();
  format.name = "qwq";
  format.thoughts = Thoughts::kDroppedUnlessLast;
  if (!cursor.take(kImSystem) || !cursor.take(kImLoop) ||
      !cursor.take("{%if not loop.last%}{%set content=message.content.split('</think>')[-1].lstrip('\n')%}{%endif%}"
                   "{{'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'}}{%endif%}{%endfor%}") ||
      !take_open(&cursor, &format.open))
    return std::nullopt;
  return format;
}

std::optional<ChatFormat> read_deepseek(std::string_view text, const TemplateNames& /*names*/) {
  CanonicalCursor cursor(text);
  ChatFormat format;
  format.name = "deepseek-r1";
  format.bos = true;
  format.system_place = SystemPlace::kTop;
  format.late = LateSystem::kDropped;
  format.thoughts = Thoughts::kDropped;
  if (!cursor.take("{%set ns=namespace(is_first=false,is_tool=false,is_output_first=true,system_prompt='')%}"
                   "{%for message in messages%}{%if message.role=='system'%}"
                   "{%set ns.system_prompt=message.content%}{%endif%}{%endfor%}{{bos_token+ns.system_prompt}}"
                   "{%for message in messages%}{%if message.role=='user'%}{{'*'+message.content}}{%endif%}"
                   "{%if message.role=='assistant'%}{%set content=message.content%}{%if '</think>' in content%}"
                   "{%set content=content.split('</think>')[-1]%}{%endif%}{{'*'+content+'*'}}{%endif%}{%endfor%}",
                   {&format.user.before, &format.assistant.before, &format.assistant.after}) ||
      !take_open(&cursor, &format.open))
    return std::nullopt;
  return format;
}

// The text up to the reasoning mode and what is written by it.
bool take_switch(CanonicalCursor* cursor, ThinkSwitch* mode) {
  std::string start;
  if (!cursor->take("{%set enable_thinking=true%}{%if enable_thinking%}{%set reasoning_mode='/think'%}{%else%}"
                    "{%set reasoning_mode='/no_think'%}{%endif%}{{'*'}}",
                    {&start}) ||
      !cursor->take("{%if messages[0].role=='system'%}{%set system_message=messages[0].content%}"
                    "{%if '/no_think' in system_message%}{%set reasoning_mode='/no_think'%}"
                    "{%elif '/think' in system_message%}{%set reasoning_mode='/think'%}{%endif%}"
                    "{%set custom_instructions=system_message.replace('/no_think','')%}"
                    "{%set custom_instructions=custom_instructions.replace('/think','')%}"
                    "{%set custom_instructions=custom_instructions.rstrip()%}{%endif%}") ||
      !cursor->take("{{'*'+reasoning_mode+'*'}}{%if custom_instructions%}{{custom_instructions+'*'}}"
                    "{%elif reasoning_mode=='/think'%}{{'*'}}{%else%}{{'*'}}{%endif%}{{'*'}}",
                    {&mode->before, &mode->between, &mode->after, &mode->thinking, &mode->not_thinking, &mode->end}))
    return false;
  mode->before = start + mode->before;
  return true;
}

std::optional<ChatFormat> read_smollm3(std::string_view text, const TemplateNames& /*names*/) {
  CanonicalCursor cursor(text);
  ChatFormat format = im_format();
  format.name = "smollm3";
  format.late = LateSystem::kDropped;
  ThinkSwitch mode;
  std::string quiet;
  std::string quiet_open;
  if (!take_switch(&cursor, &mode) ||
      !cursor.take("{%for message in messages%}{%set content=message.content if message.content is string else ''%}"
                   "{%if message.role=='user'%}{{'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'}}"
                   "{%elif message.role=='assistant'%}{%if reasoning_mode=='/think'%}"
                   "{{'<|im_start|>assistant\n'+content.lstrip('\n')+'<|im_end|>\n'}}{%else%}"
                   "{{'*'+content.lstrip('\n')+'<|im_end|>\n'}}{%endif%}{%endif%}{%endfor%}",
                   {&quiet}) ||
      !cursor.take(
          "{%if add_generation_prompt%}{%if reasoning_mode=='/think'%}{{'*'}}{%else%}{{'*'}}{%endif%}{%endif%}",
          {&format.open, &quiet_open}) ||
      !cursor.at_end() || format.open != format.assistant.before || quiet != quiet_open ||
      !quiet.starts_with(format.open))
    return std::nullopt;
  mode.empty_thought = quiet.substr(format.open.size());
  format.think_switch = std::move(mode);
  return format;
}

std::string_view name_of(const ChatFormat& format) {
  const std::string& user = format.user.before;
  const auto starts = [&](std::string_view mark) { return user.find(mark) != std::string::npos; };
  if (starts("<|im_sep|>")) return "phi-4";
  if (starts("<|im_start|>")) return "chatml";
  if (starts("<|start_header_id|>")) return format.default_system ? "llama-3.1" : "llama-3";
  if (starts("[INST]")) return format.fold_before.find("<<SYS>>") != std::string::npos ? "llama-2" : "mistral";
  if (starts("<start_of_turn>")) return "gemma";
  if (starts("<|user|>")) return format.assistant.after.find("<|end|>") != std::string::npos ? "phi-3" : "zephyr";
  return "by role";
}

// What the model writes itself to end an answer: EOS if the form has it, else all but the white space.
std::string end_of(const ChatFormat& format) {
  const std::string& after = format.assistant.after;
  if (!format.eos_text.empty() && after.find(format.eos_text) != std::string::npos) return format.eos_text;
  const std::size_t begin = after.find_first_not_of(" \n");
  if (begin == std::string::npos) return {};
  return after.substr(begin, after.find_last_not_of(" \n") + 1 - begin);
}

}  // namespace

std::optional<ChatFormat> recognise_template(std::string_view source, const TemplateNames& names) {
  std::optional<std::string> text = survey_template(source);
  if (!text) return std::nullopt;
  static constexpr std::array kReaders = {read_qwen3, read_qwq, read_deepseek, read_smollm3};
  std::optional<ChatFormat> format;
  for (const auto& read : kReaders)
    if (!format) format = read(*text, names);
  static constexpr std::string_view kBos = "{{bos_token";
  if (text->starts_with(std::string(kBos) + "+")) text->replace(kBos.size(), 1, "}}{{");
  if (!format) format = GeneralReader(*text, names).read();
  if (!format) return std::nullopt;
  if (format->name.empty()) format->name = name_of(*format);
  format->bos_text = names.bos;
  format->eos_text = names.eos;
  format->end = end_of(*format);
  return format;
}

}  // namespace kvasir
