#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "chat/canonical_cursor.h"
#include "chat/template_readers.h"

namespace kvasir {
namespace {

constexpr std::string_view kImSystem =
    "{%if messages[0].role=='system'%}{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%endif%}";
constexpr std::string_view kImLoop =
    "{%for message in messages%}{%if message.role=='user' or message.role=='system' and not loop.first%}"
    "{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}"
    "{%elif message.role=='assistant'%}{%set content=message.content%}";

// Two spellings of taking an answer's thoughts apart from its content.
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

// Takes {%if add_generation_prompt%}...: the opening of an answer if enable_thinking is undefined.
bool take_open(CanonicalCursor* cursor, std::string* open) {
  std::string more;
  if (!cursor->take("{%if add_generation_prompt%}{{'*'}}", {open})) return false;
  if (cursor->take("{%if not enable_thinking%}{{'*'}}{%endif%}", {&more})) *open += more;
  return cursor->take("{%endif%}") && cursor->at_end();
}

std::optional<ChatFormat> read_qwen3(std::string_view text) {
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

std::optional<ChatFormat> read_qwq(std::string_view text) {
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

std::optional<ChatFormat> read_deepseek(std::string_view text) {
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

// Takes the system message of a template with a reasoning mode, from the start of the text to its end.
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

std::optional<ChatFormat> read_smollm3(std::string_view text) {
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

}  // namespace

std::optional<ChatFormat> read_family_template(std::string_view text) {
  static constexpr std::array kReaders = {read_qwen3, read_qwq, read_deepseek, read_smollm3};
  for (const auto& read : kReaders)
    if (std::optional<ChatFormat> format = read(text)) return format;
  return std::nullopt;
}

}  // namespace kvasir
