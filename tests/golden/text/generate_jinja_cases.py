#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes jinja_cases.json: templates, their variables and what Jinja2 makes of them.

The environment is the one that transformers gives chat templates. Needs Debian's python3-jinja2 (3.1). Run it after
adding a case here: python3 tests/golden/text/generate_jinja_cases.py
"""
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """The tag around the assistant's text; renders its body in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter & \"mehr\" <b>天气</b>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "items": {"type": "array", "default": None}},
            "required": ["city"],
        },
    },
}
DATA = {
    "d": {"items": [1, 2], "b": "x", "a": {"n": None, "t": True, "f": 1.0}},
    "l": ["a", 1, None, True, 2.5, "it's", 'say "x"', {"k": "v"}],
    "s": "héllo wörld 🚀",
    "spaces": " \t a  b\n c \n",
    "n": 7,
    "neg": -3,
    "x": 1.5,
    "big": 1e20,
    "tiny": 1.5e-7,
    "whole": 100.0,
    "huge": 9007199254740993,
    "nothing": None,
    "yes": True,
    "no": False,
    "zero": 0,
    "empty": "",
    "none_list": [],
    "people": [
        {"name": "Zoe", "age": 30, "tags": ["x"]},
        {"name": "adam", "age": 5},
        {"name": "Bob", "age": 30, "tags": []},
    ],
}

# One per line: an expression printed with DATA as its variables.
EXPRESSIONS = r"""
none
nothing
yes
no
true and false
1
x
big
tiny
whole
huge
1e16
1e15
0.0001
0.00001
-0.5
l
d
[1, 'a', none]
[1.0, 1e20]
(1, 2)
(1,)
()
{'a': 'b', 'c': [true]}
{}
[]
"it's"
["it's", 'q"q', "both ' and \""]
['\n\t\\', 'é']
missing
missing is defined
missing is undefined
missing is none
nothing is none
nothing is defined
missing|length
missing|default('dflt')
nothing|default('dflt')
nothing|default('dflt', true)
empty|default('dflt')
empty|default('dflt', true)
'a' in missing
missing == none
missing == ''
not missing
missing or 'other'
missing|string
missing|list
missing ~ 'x'
d.nope
d['nope']
d.nope is defined
d['items']
d.b
d.a.n
d.a.n is none
d.get('b')
d.get('zz')
d.get('zz', 5)
d.get('items')
d.items()|list
d.keys()|list
d.values()|list
d|items|list
d|length
d|list
'b' in d
'zz' not in d
d|dictsort
l[0]
l[-1]
l[99]
l[-99]
l[99] is undefined
l[1:3]
l[::-1]
l[:-1]
l[-2:]
l[::2]
l[::-2]
l[5:1:-1]
l[100:]
l[:100]
l[-100:2]
s[0]
s[1]
s[-1]
s[::-1]
s[1:4]
s[-3:]
s[:-2]
s|length
s[99]
s[99] is undefined
1 + 2 * 3
2 ** 3
2 ** -1
7 / 2
8 / 2
7 // 2
-7 // 2
-7 % 3
7 % 3
7.5 // 2
7.5 % 2
n + x
true + 1
true + true
'a' + 'b'
'ab' * 3
[1] + [2]
[0] * 3
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x']
'a' ~ 'b'|upper
1 + 2 is odd
not x is defined
messages|length - 1
1 < 2 < 3
3 > 2 > 2
1 == 1.0
true == 1
'1' == 1
'a' < 'b'
[1, 2] == [1, 2]
{'a': 1} == {'a': 1}
2 in [1, 2]
'ell' in 'hello'
'x' if yes
'x' if no
('x' if no) is defined
'x' if no else 'y'
1 if no else 2 if no else 3
yes and 'a' or 'b'
zero or 'z'
none_list or 'empty list'
not none_list
not 0
not ''
-n
+n
- n + 1
'a' 'b'
n is number
yes is number
yes is integer
n is integer
x is integer
x is float
n is float
yes is boolean
n is boolean
's' is string
l is string
d is mapping
l is mapping
l is sequence
d is sequence
's' is sequence
(1, 2) is sequence
n is sequence
l is iterable
d is iterable
's' is iterable
n is iterable
nothing is iterable
missing is iterable
range is callable
n is callable
d.get is callable
n is odd
n is even
n is divisibleby(7)
n is divisibleby 7
n is eq 7
n is equalto 7
n is ne 7
n is gt 6
n is lt 6
n is ge 7
n is le 7
n is in [7, 8]
n is not in [7, 8]
yes is true
no is false
zero is false
1 is true
nothing is not none
'abc' is lower
'ABC' is upper
n is sameas 7
nothing is sameas none
d|tojson
l|tojson
s|tojson
'<a href="x">&\'</a>'|tojson
"a/b \\ \" \n \t \u007f \u0001"|tojson
x|tojson
big|tojson
tiny|tojson
whole|tojson
huge|tojson
1e16|tojson
nothing|tojson
yes|tojson
[]|tojson
{}|tojson
[1, 2]|tojson
(1, 2)|tojson
d|tojson(indent=2)
l|tojson(indent=4)
[[], {}]|tojson(indent=1)
[[], {}, [1]]|tojson(indent=0)
d|tojson(separators=(',', ':'))
d|tojson(sort_keys=true)
s|tojson(ensure_ascii=true)
missing|tojson
{'a': 1, 2: 3, none: 4, true: 5}|tojson
d.items()|list|tojson
'  x '|trim
'xxaxx'|trim('x')
spaces|trim
'a,b'|upper
'HeLLo wOrld'|title
'HeLLo wOrld'|capitalize
"they're bill's friends"|title
'HeLLo'|lower
'a-b-c'|replace('-', '+')
'a-b-c'|replace('-', '+', 1)
l|join(', ')
[1, 2, 3]|join
people|join(', ', attribute='name')
people|map(attribute='name')|join(',')
people|map(attribute='tags', default='none')|list
people|map('length')|list
['a', 'b']|map('upper')|list
people|selectattr('age', 'equalto', 30)|map(attribute='name')|list
people|selectattr('tags')|map(attribute='name')|list
people|selectattr('tags', 'defined')|map(attribute='name')|list
people|rejectattr('age', 'equalto', 30)|map(attribute='name')|list
people|rejectattr('tags', 'defined')|map(attribute='name')|list
[1, 2, 3, 4]|select('odd')|list
[1, 2, 3, 4]|reject('odd')|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
people|sort(attribute='age')|map(attribute='name')|list
people|sort(attribute='name')|map(attribute='name')|list
['b', 'A', 'c']|sort
['b', 'A', 'c']|sort(case_sensitive=true)
[3, 1, 2]|sort(reverse=true)
['a', 'b', 'A']|unique|list
[1, 2, 1]|unique|list
[1, 2, 3]|reverse|list
'abc'|reverse
[1, 2, 3]|first
[1, 2, 3]|last
'abc'|first
'abc'|last
[]|first
[]|first is undefined
[1, 2, 3]|sum
people|sum(attribute='age')
[1, 2, 3]|min
[1, 2, 3]|max
['b', 'A']|min
-5|abs
(-5)|abs
2.567|round
2.567|round(2)
2.5|round
3.5|round
2.567|round(1, 'floor')
2.567|round(method='ceil')
'42'|int
'4.7'|int
'x'|int
'x'|int(5)
4.9|int
'1.5'|float
'x'|float
'ff'|int(base=16)
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3, 4, 5]|batch(2, 'x')|list
[1, 2, 3, 4, 5]|slice(2)|list
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2)
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'<a>'|e
'<a>'|escape
'<a>'|safe
'%s is %d'|format('x', 3)
'%05.2f|%-5s|%x'|format(3.14159, 'ab', 255)
'hello world foo'|wordcount
'abc'|list
people|groupby('age')|list|length
{'b': 1, 'A': 2}|dictsort
{'b': 1, 'A': 2}|dictsort(by='value')
{'b': 1, 'a': 2}|items|list
'abc'.upper()
'ABC'.lower()
'abc'.capitalize()
'abc def'.title()
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.split(',')[-1]
spaces.split()
spaces.split(none, 1)
'a b  c '.split(' ')
''.split()
''.split(',')
'a,b,c'.rsplit(',', 1)
' a b  c '.rsplit(none, 1)
'a,b,c'.partition(',')
'a,b,c'.rpartition(',')
'abc'.partition('x')
'x</think>\n\ny</think>z'.split('</think>')[-1].lstrip('\n')
'x</think>y'.split('</think>')[0].rstrip('\n').split('<think>')[-1]
'a<b>c'.split('<b>', maxsplit=1)
spaces.strip()
spaces.lstrip()
spaces.rstrip()
'xyabcyx'.strip('xy')
'xyabcyx'.lstrip('xy')
'xyabcyx'.rstrip('xy')
'abc'.startswith('ab')
'abc'.startswith(('x', 'a'))
'abc'.endswith('bc')
'abc'.endswith(('x', 'c'))
'abcabc'.find('c')
'abcabc'.find('c', 3)
'abcabc'.find('x')
'abcabc'.rfind('c')
'héé'.find('é', 2)
'abcabc'.index('b')
'abcabc'.index('x')
'abcabc'.count('bc')
'abc'.replace('b', 'x')
'aaa'.replace('a', 'b', 2)
'123'.isdigit()
'1a'.isdigit()
'ab'.isalpha()
'ab1'.isalnum()
'ab'.islower()
'AB'.isupper()
'  '.isspace()
'{} and {}'.format(1, 'x')
'{0}-{1}-{0}'.format('a', 'b')
'{name}: {v:>5}|{f:.2f}'.format(name='n', v='x', f=3.14159)
'{:,}'.format(1234567)
', '.join(['a', 'b'])
', '.join(l)
'a\nb\r\nc\n'.splitlines()
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'aBc'.swapcase()
'5'.zfill(3)
'-5'.zfill(4)
'ab'.ljust(4) ~ '|'
'ab'.rjust(4, '.')
'ab'.center(5, '*')
'ß'.upper()
'STRASSE'.casefold()
'abc'.nosuch()
l.append(1)
l.pop()
d.update({'a': 1})
d.pop('b')
d.nosuch()
nothing.x
missing.x
missing + 1
missing[0]
missing.x.y
nothing + 1
'a' + 1
1 / 0
1 // 0
l.count('a')
l.index(1)
(1, 2, 1).count(1)
range(3)|list
range(1, 4)|list
range(0, 10, 3)|list
range(5, 0, -2)|list
range(3)|length
dict(a=1, b='x')
dict(a=1).a
namespace(a=1).a
raise_exception('no way')
[1, 2] + [3] == [1, 2, 3]
l|length > 3 and l[0] == 'a'
people[0].name
people[0]['name']
people[-1].tags
people[0].tags[0]
people|length
(people|first).name
people|map(attribute='name')|map('lower')|sort|join(' ')
l|map('string')|join(' ')
l|string
d|string
x|string
whole|string
true|string
none|string
[true, none]|join(',')
'\u00e9' == 'é'
"a\"b"
'a\'b'
'tab\there'
'raw
newline'
"{{ not an expression }}"
1_000
0x1f
017
""".strip("\n")

STATEMENTS = [
    ("trailing newline", "a\n"),
    ("two trailing newlines", "a\n\n"),
    ("trim blocks", "{% if true %}\na\n{% endif %}\nb"),
    ("lstrip blocks", "  {% if true %}\n  a\n    {% endif %}\nb"),
    ("lstrip needs the start of the line", "{{ 'a' }} {% if 1 %}b{% endif %}"),
    ("lstrip tabs", "x\n \t{% if 1 %}b{% endif %}"),
    ("plus keeps blanks", "  {%+ if true %}a{% endif +%}\nb"),
    ("minus", "a  \n {%- if true -%} \n b \n {%- endif -%} \n c"),
    ("minus in expressions", "a \n {{- 'b' -}} \n c"),
    ("comment", "a{# x {{ y }} #}b\n{# line #}\nc {#- d -#} e"),
    ("raw", "{% raw %}{{ a }}{% if %}{% endraw %}"),
    ("raw trims", "x\n{% raw %}\n {{ a }} \n{% endraw %}\ny"),
    ("expression keeps newline", "{{ 'a' }}\nb"),
    ("elif", "{% if no %}1{% elif yes %}2{% else %}3{% endif %}"),
    ("for", "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}"),
    ("for reverse counters", "{% for i in [1,2,3] %}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}"),
    ("for previtem", "{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}"),
    ("for previtem defined", "{% for i in [1,2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}"),
    ("for changed", "{% for i in [1,1,2] %}{{ loop.changed(i) }} {% endfor %}"),
    ("for cycle", "{% for i in [1,2,3] %}{{ loop.cycle('a', 'b') }}{% endfor %}"),
    ("for depth", "{% for i in [1] %}{% for j in [1] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor %}"),
    ("for unpack", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}"),
    ("for unpack filter", "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}"),
    ("for unpack pairs", "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}"),
    ("for if", "{% for i in [1,2,3,4] if i is even %}{{ i }}{{ loop.index }}{% endfor %}"),
    ("for else", "{% for i in [] %}x{% else %}none{% endfor %}"),
    ("for else filtered", "{% for i in [1] if i > 3 %}x{% else %}none{% endfor %}"),
    ("for recursive", "{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}"),
    ("for dict", "{% for k in d %}{{ k }} {% endfor %}"),
    ("for string", "{% for c in 'héy' %}{{ c }}.{% endfor %}"),
    ("for undefined", "{% for c in missing %}x{% else %}empty{% endfor %}"),
    ("for none", "{% for c in nothing %}x{% endfor %}"),
    ("for number", "{% for c in 5 %}x{% endfor %}"),
    ("for range", "{% for i in range(3) %}{{ i }}{% endfor %}"),
    ("break", "{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
    ("continue", "{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"),
    ("loop outside", "{{ loop is defined }}{% for i in [1] %}{% endfor %}{{ loop }}"),
    ("loop is outer in else", "{% for i in [1, 2] %}{% set j = loop.index %}{% for k in [] %}{% else %}{{ j }}{% endfor %}{% endfor %}"),
    ("set", "{% set a = 1 %}{% set b = a + 1 %}{{ b }}"),
    ("set tuple", "{% set a, b = 1, 'x' %}{{ a }}{{ b }}"),
    ("set in for is lost", "{% set a = 0 %}{% for i in [1,2] %}{% set a = i %}{% endfor %}{{ a }}"),
    ("set in if stays", "{% if true %}{% set a = 1 %}{% endif %}{{ a }}"),
    ("namespace", "{% set ns = namespace(a=0, b='x') %}{% for i in [1,2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}"),
    ("namespace new key", "{% set ns = namespace() %}{% set ns.k = [1] %}{{ ns.k }}{{ ns.zz is defined }}"),
    ("set attribute of dict", "{% set d.b = 1 %}{{ d.b }}"),
    ("set block", "{% set a %}x{{ n }}\n{% endset %}[{{ a }}]"),
    ("set block filter", "{% set a | upper %}x{{ n }}{% endset %}{{ a }}"),
    ("macro", "{% macro f(a, b='d') %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 2) }} {{ f(b=3, a=4) }}"),
    ("macro missing argument", "{% macro f(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ f() }}"),
    ("macro none default", "{% macro f(a=none) %}{{ a is none }}{% endmacro %}{{ f() }}"),
    ("macro recursion", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}"),
    ("macro sees globals", "{% set g = 'G' %}{% macro f() %}{{ g }}{{ n }}{% endmacro %}{{ f() }}"),
    ("macro set is local", "{% set a = 1 %}{% macro f() %}{% set a = 2 %}{{ a }}{% endmacro %}{{ f() }}{{ a }}"),
    ("macro result is a string", "{% macro f() %} x {% endmacro %}{{ f()|trim }}{{ f() is string }}{{ f()|length }}"),
    ("macro too many arguments", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}"),
    ("macro varargs", "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, z=3) }}"),
    ("call block", "{% macro f(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% call f(1) %}body{% endcall %}"),
    ("call block argument", "{% macro f() %}{% for i in [1,2] %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) f() %}<{{ i }}>{% endcall %}"),
    ("filter block", "{% filter upper %}a{{ s }}{% endfilter %}"),
    ("with", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}"),
    ("do", "{% do l.append(1) %}"),
    ("generation", "a\n{% generation %}\nb{{ n }}\n{% endgeneration %}\nc"),
    ("generation minus", "a {%- generation -%} b {%- endgeneration -%} c"),
    ("generation scope", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"),
    ("generation word", "{{ 'generation' }}{# generation #}{% raw %}{% generation %}{% endraw %}{% set generation = 3 %}{{ generation }} generation"),
    ("generation after braces", "{{ {'a': {'b': '%}'}} }}{% generation %}x{% endgeneration %}"),
    ("unknown tag", "{% nosuch %}"),
    ("unknown filter", "{{ n|nosuch }}"),
    ("unknown test", "{{ n is nosuch }}"),
    ("unknown function", "{{ nosuch(1) }}"),
    ("unclosed", "{% if true %}a"),
    ("bad expression", "{{ 1 + }}"),
    ("raise in branch", "{% if yes %}{{ raise_exception('Only user and assistant!') }}{% endif %}"),
    ("raise not reached", "{% if no %}{{ raise_exception('x') }}{% endif %}ok"),
    ("tool loop", "{% for t in tools %}{{ t|tojson }}\n{% endfor %}"),
    ("tool loop indent", "{% for t in tools %}{{ t|tojson(indent=4) }}\n{% endfor %}"),
    ("tool properties", "{% for k, v in tools[0].function.parameters.properties.items() %}{{ k }}:{{ v.type }};{% endfor %}"),
    ("tool properties named items", "{{ tools[0].function.parameters.properties['items']['type'] }}"),
    ("message keys", "{% for m in messages %}{{ m.role }}:{{ m['content'] }}{% if m.tool_calls is defined %}!{% endif %}{% if 'name' in m %}?{% endif %};{% endfor %}"),
    ("last user index", "{% set ns = namespace(i=messages|length - 1) %}{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{% if m.role == 'user' %}{% set ns.i = i %}{% break %}{% endif %}{% endfor %}{{ ns.i }}"),
    ("loop messages from one", "{% for m in messages[1:] %}{{ m.content }}{{ loop.index0 }}{% endfor %}"),
    ("reassign messages", "{% if messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set messages = messages[1:] %}{% endif %}{{ sys }}|{{ messages|length }}|{{ messages[0].role }}"),
    ("special tokens", "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"),
    ("tokens in concatenation", "{{ bos_token + 'x' + eos_token }}"),
    ("generation prompt", "{% if add_generation_prompt %}G{% else %}N{% endif %}"),
    ("enable_thinking absent", "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}"),
    ("tools none", "{{ documents is none }}{{ documents is defined }}"),
    ("chatml", "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    ("llama style", "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"),
    ("mistral style", "{%- for m in messages %}\n    {%- if m.role == 'user' %}\n        {{- '[INST] ' + m.content + ' [/INST]' }}\n    {%- else %}\n        {{- ' ' + m.content|trim + eos_token }}\n    {%- endif %}\n{%- endfor %}\n"),
    ("set from conditional", "{% set x = 'a' if yes else 'b' %}{{ x }}"),
    ("nested ternary with concat", "{{ ('a' if yes else 'b') ~ ('c' if no else 'd') }}"),
    ("multi line expression", "{{\n  'a'\n  ~\n  'b'\n}}"),
    ("dict literal lookups", "{% set m = {'user': 'U', 'assistant': 'A'} %}{{ m['user'] }}{{ m.assistant }}{{ m.get('x', '-') }}"),
    ("list building", "{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}"),
    ("string building", "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.role[0] %}{% endfor %}{{ ns.t }}"),
    ("scoped block", "{% for i in [1,2] %}{% if i == 1 %}{% set seen = true %}{% endif %}{{ seen is defined }}{% endfor %}"),
    ("windows line ends", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n"),
    ("joiner", "{% set j = joiner(', ') %}{% for i in [1,2,3] %}{{ j() }}{{ i }}{% endfor %}"),
    ("cycler", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}"),
]


def main():
    env = environment()
    context = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": " Hi 你好 "},
            {"role": "assistant", "content": "Hello.", "name": "bot"},
            {"role": "user", "content": "Bye"},
        ],
        "tools": [WEATHER],
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        **DATA,
    }
    cases = [(f"expression {index}", "{{ %s }}" % text) for index, text in enumerate(split_expressions())]
    cases += STATEMENTS
    results = []
    for name, template in cases:
        result = {"name": name, "template": template}
        try:
            result["expected"] = env.from_string(template).render(**json.loads(json.dumps(context)))
        except Exception as error:  # every failure is a recorded outcome
            result["error"] = f"{type(error).__name__}: {error}"
        results.append(result)
    path = pathlib.Path(__file__).with_name("jinja_cases.json")
    text = ",\n".join(json.dumps(result, ensure_ascii=False) for result in results)
    path.write_text('{"context": ' + json.dumps(context, ensure_ascii=False) + ',\n"cases": [\n' + text + "\n]}\n")
    print(f"{path.name}: {len(results)} cases, {sum('error' in result for result in results)} of them errors")


def split_expressions():
    """One expression a line; a line that ends inside a quote goes on in the next one."""
    lines = []
    for line in EXPRESSIONS.split("\n"):
        if lines and lines[-1] == "'raw":
            lines[-1] += "\n" + line
        else:
            lines.append(line)
    return lines


if __name__ == "__main__":
    main()
