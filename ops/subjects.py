"""The subjects of the built-in corpus, and who writes and reads about them in a mesh run.

Data only: which modules and reference topics make up a subject, the one or two sentences with which
an agent of that subject introduces itself (its first position in the mesh), and the assignment of
nine agents to three nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Subject:
    """A field of knowledge: where its text comes from, and what somebody of the field cares for.

    `modules` are importable names, or `builtins:NAME` for one built-in class; `topics` are keys of
    `pydoc_data.topics`.  A text that two subjects could claim belongs to the first in `SUBJECTS`.
    """

    name: str
    description: str
    modules: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """A writer of the mesh run: the node it lives on, its first position, and what it writes."""

    name: str
    node: str
    subjects: tuple[str, ...]

    @property
    def description(self) -> str:
        return " ".join(
            subject.description for subject in SUBJECTS if subject.name in self.subjects
        )


def _subject(name: str, description: str, modules: str = "", topics: str = "") -> Subject:
    return Subject(name, description, tuple(modules.split()), tuple(topics.split()))


SUBJECTS: Final = (
    _subject(
        "sockets",
        "Network connections: sockets, addresses and ports, servers and clients, TLS contexts "
        "and certificates, timeouts and selectors.",
        "socket _socket ssl select selectors ipaddress ftplib socketserver",
    ),
    _subject(
        "web",
        "The web: HTTP requests and responses, headers, cookies, URLs and proxies, web servers "
        "and gateways, remote procedure calls.",
        "http urllib xmlrpc wsgiref webbrowser",
    ),
    _subject(
        "messages",
        "Electronic mail messages: header fields, addresses, MIME parts, charsets, payloads and "
        "transfer encodings, parsing and generating them.",
        "email quopri",
    ),
    _subject(
        "mail servers",
        "Mail servers and mailboxes: sending with SMTP, fetching with IMAP and POP, login, "
        "commands and responses, and encoding of binary data for mail.",
        "smtplib imaplib poplib mailbox mimetypes base64 binascii",
    ),
    _subject(
        "tasks",
        "Asynchronous programs: event loops, coroutines, tasks and futures, cancellation, "
        "transports, streams and callbacks.",
        "asyncio contextvars sched",
    ),
    _subject(
        "threads",
        "Threads and processes: locks, conditions and semaphores, queues and pools, executors "
        "and futures, starting and waiting for a child process, signals.",
        "threading multiprocessing concurrent concurrent.futures._base queue subprocess signal "
        "_thread",
    ),
    _subject(
        "paths",
        "The file system: paths, directories and their entries, permissions, copying, moving "
        "and deleting files, links, temporary files.",
        "os pathlib posixpath ntpath genericpath shutil tempfile glob fnmatch stat filecmp",
    ),
    _subject(
        "archives",
        "Files and archives: opening, reading, writing and seeking in streams and buffers, zip "
        "and tar archives, compression.",
        "zipfile tarfile gzip bz2 lzma zlib io _pyio fileinput mmap shelve dbm zipapp",
    ),
    _subject(
        "unit tests",
        "Tests: test cases and suites, assertions, fixtures, mocks, runners and the examples "
        "in docstrings.",
        "unittest doctest",
    ),
    _subject(
        "debugging",
        "Debugging: breakpoints, stack frames, stepping, tracebacks, warnings, tracing and "
        "profiling of programs.",
        "pdb bdb trace tracemalloc cProfile profile pstats timeit traceback warnings faulthandler",
        "debugger",
    ),
    _subject(
        "logging",
        "Logging: loggers, handlers, levels, records, formatters and filters.",
        "logging",
    ),
    _subject(
        "strings",
        "Strings and patterns: characters, splitting, joining, stripping and replacing, format "
        "specifications and regular expressions.",
        "re string textwrap builtins:str builtins:bytes",
        "string-methods strings formatstrings unicode",
    ),
    _subject(
        "codecs",
        "Encodings and languages: codecs, Unicode, error handlers, locales and translations, "
        "comparing texts and pretty printing.",
        "codecs encodings difflib unicodedata gettext locale stringprep cmd shlex pprint reprlib",
    ),
    _subject(
        "exact numbers",
        "Exact numbers: decimals and fractions, precision and rounding, signs, exponents and "
        "digits of a number.",
        "decimal fractions builtins:int builtins:float builtins:complex",
    ),
    _subject(
        "mathematics",
        "Mathematics and statistics: functions of real and complex numbers, mean and deviation, "
        "random numbers and their distributions.",
        "math cmath statistics random numbers secrets colorsys",
        "numbers integers floating imaginary numeric-types power shifting",
    ),
    _subject(
        "markup",
        "XML and HTML: elements, attributes, namespaces, parsers, trees and events.",
        "html xml",
    ),
    _subject(
        "configuration",
        "Configuration and data formats: options and arguments, sections of a file, JSON, CSV "
        "and pickles.",
        "json csv configparser tomllib plistlib argparse optparse getopt pickle marshal",
    ),
    _subject(
        "introspection",
        "Introspection: signatures, members and source of functions and classes, code objects, "
        "bytecode, syntax trees, tokens and type annotations.",
        "inspect ast dis code codeop symtable tokenize typing abc pydoc pyclbr opcode",
    ),
    _subject(
        "imports",
        "Modules and the interpreter: importing, finders, loaders and packages, the search "
        "path, compiled files, garbage collection and installation folders.",
        "importlib sys gc pkgutil runpy compileall modulefinder site sysconfig py_compile "
        "zipimport platform venv atexit resource",
    ),
    _subject(
        "containers",
        "Containers and algorithms: heaps, queues, counters, iterators, sorting and searching, "
        "caching, copying, enumerations and data classes.",
        "builtins collections heapq bisect itertools functools operator array copy graphlib "
        "weakref enum types dataclasses contextlib struct",
    ),
    _subject(
        "sequences",
        "Lists, tuples, ranges and dictionaries: indexing, slicing, items, keys and views.",
        "",
        "typesmapping typesseq typesseq-mutable dict lists sequence-types slicings subscriptions",
    ),
    _subject(
        "objects",
        "The data model of Python: objects and types, classes and instances, attributes, "
        "descriptors and special methods, names and scopes.",
        "",
        "specialnames customization attribute-access class objects types naming execmodel "
        "specialattrs typesmethods typesfunctions typesmodules bltin-code-objects "
        "bltin-ellipsis-object bltin-null-object bltin-type-objects callable-types id-classes "
        "dynamic-features",
    ),
    _subject(
        "statements",
        "The syntax of Python: statements, expressions and operators, assignment, loops, "
        "exceptions, calls and comparisons.",
        "",
        "assert assignment async atom-identifiers atom-literals attribute-references augassign "
        "await binary bitwise booleans break calls comparisons compound context-managers continue "
        "conversions del else exceptions exprlists for function global identifiers if import in "
        "lambda nonlocal operator-summary pass raise return truth try unary while with yield",
    ),
    _subject(
        "dates",
        "Dates and times: calendars, days, months and weeks, time zones, durations and clocks.",
        "datetime calendar time zoneinfo",
    ),
)

ASSIGNMENT: Final = (
    Agent("objects", "A", ("objects",)),
    Agent("statements", "A", ("statements",)),
    Agent("tasks", "A", ("tasks",)),
    Agent("introspection", "B", ("introspection", "imports")),
    Agent("messages", "B", ("messages",)),
    Agent("exact numbers", "B", ("exact numbers",)),
    Agent("threads", "C", ("threads",)),
    Agent("mail servers", "C", ("mail servers",)),
    Agent("mathematics", "C", ("mathematics",)),
)
"""Nine agents on three nodes: each one's subject concerns somebody on one other node.

objects and statements (A) concern introspection (B); tasks (A) and threads (C), messages (B) and
mail servers (C), exact numbers (B) and mathematics (C) concern each other.  Measured with the
bundled embedder at a threshold of 0.40 against the mean of each agent's texts: the node concerned
wants 33 to 73 % of a subject's texts, the third node 6 to 29 %.  Subjects that are not assigned
concern nobody in particular.
"""
