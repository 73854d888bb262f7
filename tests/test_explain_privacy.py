"""Pseudonyms: nothing telling leaves, everything comes back."""

import json
import stat
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.explain.privacy import Pseudonyms, key_path, redact

SECRETS = [
    "sk-abcdefghijklmnopqrstuvwx",
    "sk-proj-abc_DEF-0123456789abcdef",
    "hf_AbCdEfGhIjKlMnOpQrSt",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_0123456789abcdefghijABCDEFGHIJ",
    "github_pat_11ABCDEFG0123456789_abcdef",
    "xoxb-1234567890-abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123_-",
    "0123456789abcdef0123456789abcdef01234567",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("frame", ["{}", "x = '{}'", "token {} end", "a\n{}\nb"])
def test_secrets_are_hidden_wherever_they_stand(secret, frame):
    names, text = Pseudonyms(), frame.format(secret)
    hidden = names.hide(text)
    assert secret not in hidden
    assert names.reveal(hidden) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("WANDB_API_KEY=abc12345xyz", "abc12345xyz"),
        ('password = "hunter2"', "hunter2"),
        ("--auth-token s3cretvalue99 --batch 3", "s3cretvalue99"),
        ("--api-key=s3cretvalue99", "s3cretvalue99"),
        ("Authorization: Bearer abcdEFGH1234", "abcdEFGH1234"),
        ("redis://admin:pw123@cache.example.com:6379/0", "pw123"),
        ('{"aws_secret_access_key": "wJalrXUtnFEMI/K7MDENG"}', "wJalrXUtnFEMI/K7MDENG"),
        ("os.environ['HF_TOKEN'] = 'abcd1234efgh'", "abcd1234efgh"),
        ("DB_PASS=hunter2abc", "hunter2abc"),
        ("{'key': 'env.API_TOKEN', 'value': 'plainword'}", "plainword"),
        ("SMTP_PASS: longpassword", "longpassword"),
        ("  password: correcthorse\n", "correcthorse"),
        ("API_TOKEN=abcdefghijkl", "abcdefghijkl"),
        ("--db-pass hunter22 --epochs 3", "hunter22"),
        ('"api_key": "abcdefghijklmnopqr"', "abcdefghijklmnopqr"),
        ('client = Client(token="MySecretTokenValue")', "MySecretTokenValue"),
        ("https://x.blob.core.windows.net/c/f?sv=2024-01&sig=aB%2Fc%3D&se=1", "aB%2Fc%3D"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=abcdefgh", "abcdefgh"),
    ],
)
def test_values_are_hidden_by_what_they_are_called(text, secret):
    names = Pseudonyms()
    assert secret not in names.hide(text)
    assert names.reveal(names.hide(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=4096, num_key_value_heads=8",
        "TOKENIZERS_PARALLELISM=false",
        'pad_token="<pad>"',
        "sorted(items, key=lambda item: item.size)",
        "c10d::Reducer at::native::add_ std::vector",
        "torch 2.13.0+cpu at 03:12:05, 127.0.0.1",
        "for key in state: value = state[key]",
        "token = tokenizer.encode(text)",
        "PWD=/data/project OLDPWD=/data",
        "forward_pass=0.123 backward_pass=12.5ms",
        "pass: 1234567, n_pass=100000",
        "sort_key='created_at', metric_key=\"train/loss_mean\"",
        "sig=SIGTERM, signal=15",
        "pad_token='<|endoftext|>', mask_token=\"[MASK]\"",
        "bypass=always_enabled, compass=northwards",
        "?page=2&sort=descending",
        "def login(api_key: Optional[str] = None, password: SecretStr, token: TokenType) -> None",
        "unexpected token: identifier",
    ],
)
def test_ordinary_code_is_left_alone(text):
    assert Pseudonyms().hide(text) == text


def test_addresses_users_and_hosts_get_stable_names():
    names = Pseudonyms()
    names.know("gpu-003.cluster.example", "node")
    names.know("gpu-003", "node")
    text = "gpu-003.cluster.example gpu-003 10.1.2.3 fe80::1ff:fe23:4567:890a /home/ada/x ada@b.org"
    first = names.hide(text)
    assert first == "node-1 node-2 ip-1 ip-2 /home/user-1/x mail-1"
    assert names.hide(text) == first
    assert names.reveal(first) == text


def test_a_host_inside_a_longer_name_is_another_host():
    names = Pseudonyms()
    names.know("gpu1", "node")
    assert names.hide("gpu1 gpu12 agpu1") == "node-1 gpu12 agpu1"


def test_text_that_looks_like_a_pseudonym_comes_back_as_itself():
    names = Pseudonyms()
    names.know("node-1", "node")
    names.know("alpha", "node")
    text = "alpha node-1 node-2 secret-1 xnode-3y"
    assert names.reveal(names.hide(text)) == text


def test_even_a_short_host_is_hidden_where_it_stands_alone():
    names = Pseudonyms()
    names.know("vm", "node")
    assert names.hide("vm: vmstat svm") == "node-1: vmstat svm"


def test_common_words_are_no_names():
    names = Pseudonyms()
    names.know("train", "user")
    names.know("localhost", "node")
    names.know("", "node")
    assert names.hide("train.py on localhost") == "train.py on localhost"


PIECES = st.sampled_from(
    [*SECRETS, "gpu-003", "ada", "/home/ada/p", "10.0.0.7", "node-1", "user-2", "secret-", "=", '"',
     " ", "\n", "@", "://", "key=", "password: ", "a", "-", "1", "9", "_"]
)  # fmt: skip


@given(st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=12).map("".join))
def test_reveal_undoes_hide_for_any_text(text):
    names = Pseudonyms()
    names.know("gpu-003", "node")
    names.know("ada", "user")
    assert names.reveal(names.hide(text)) == text


@given(st.text(alphabet="ab \n:/", max_size=30), st.sampled_from(SECRETS[:8]))
def test_no_surrounding_text_lets_a_secret_through(text, secret):
    assert secret not in Pseudonyms().hide(f"{text} {secret} {text}")


def test_values_of_the_environment_are_hidden_by_their_names():
    settings = [{"key": "env.MY_TOKEN", "value": "plain"}, {"key": "env.PATH2", "value": "plain"}]
    hidden = Pseudonyms().hide_record(settings)
    assert [one["value"] for one in hidden] == ["secret-1", "plain"]


def test_the_key_is_the_owners_and_holds_no_secret(saved_incident):
    folder = saved_incident("stuck")
    names = Pseudonyms.of(folder, folder.read_incident(), folder.read_evidence())
    hidden = names.hide("gpu-003 of ada, password='hunter2'")
    names.save(folder)
    path = key_path(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text()).values()) == {"gpu-003", "ada"}
    again = Pseudonyms.of(folder, folder.read_incident(), folder.read_evidence())
    assert again.hide("ada on gpu-003") == "user-1 on node-1"
    assert again.reveal(hidden).startswith("gpu-003 of ada")


def test_redaction_keeps_the_lines():
    text = "a\n-----BEGIN PRIVATE KEY-----\nxyz\n-----END PRIVATE KEY-----\nkey = 'sk-" + "a" * 20
    redacted = redact(text)
    assert "xyz" not in redacted
    assert redacted.count("\n") == text.count("\n")


def test_a_secret_of_this_environment_is_hidden_as_it_stands(monkeypatch, saved_incident):
    monkeypatch.setenv("CORP_TOKEN", "plainlookingword")
    folder = saved_incident("slow")
    names = Pseudonyms.of(folder, folder.read_incident(), None)
    assert "plainlookingword" not in names.hide("said plainlookingword there")


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "a_", "a-", "a.", "a:", "0", ":", "1.", "a@", "a/", "@a", "://", "'", " ", "\n"),
        *("key", "key=", "_key", "sk-", "eyJ", "-----BEGIN PRIVATE KEY-----", "/home/", "secret-"),
    ],
)
def test_long_foreign_text_takes_no_long_time(unit):
    text = unit * (60_000 // len(unit))
    start = time.process_time()
    names = Pseudonyms()
    assert names.reveal(names.hide(text)) == text
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("DB_PASS", True), ("SAS_SIG", True), ("BYPASS", False), ("SIGNAL", False), ("PWD", False)],
)
def test_names_of_secrets_end_in_a_word_for_one(name, is_secret):
    from eroica.explain.secrets import is_secret_name

    assert is_secret_name(name) is is_secret


def test_a_user_without_a_home_is_no_obstacle(saved_incident, monkeypatch):
    from eroica.explain import privacy

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(privacy.Path, "home", home)
    folder = saved_incident("stuck")
    names = Pseudonyms.of(folder, folder.read_incident(), folder.read_evidence())
    assert names.hide("nothing to hide") == "nothing to hide"


def test_redaction_of_a_record_knows_variables_by_their_setting():
    from eroica.explain.privacy import redact_all

    command = ["train", "--db-pass", "hunter22", "--lr", "3"]
    assert redact_all(command) == ["train", "--db-pass", "[secret]", "--lr", "3"]
    record = {"settings": [{"key": "env.DB_PASS", "value": "short"}, {"text": "mail me@x.org"}]}
    assert redact_all(record) == {
        "settings": [{"key": "env.DB_PASS", "value": "[secret]"}, {"text": "mail [mail]"}]
    }


def test_thousands_of_hosts_are_hidden_in_a_moment():
    names = Pseudonyms()
    names.know_hosts(f"gpu-{n:05d}.cluster.example" for n in range(8000))
    lines = [f"rank {n} on gpu-{n:05d}.cluster.example waits" for n in range(600)]
    start = time.process_time()
    hidden = names.hide("\n".join(lines))
    assert time.process_time() - start < 0.7
    assert "cluster" not in hidden and names.reveal(hidden) == "\n".join(lines)


@pytest.mark.parametrize(
    ("known", "text", "is_hidden"),
    [
        ("gpu-1", "on gpu-1.", True),
        ("gpu-1", "x-gpu-1-y", True),
        ("gpu-1", "gpu-12", False),
        ("gpu-1", "mygpu-1", False),
        ("gpu-1", "gpu-1_b", False),
        ("/srv/job", "in /srv/job/t.py", True),
        ("/srv/job", "x/srv/job", False),
        ("...", "a ... b", True),
        ("n1.a", "n1.a n1.a,n1.a", True),
        ("gpu-1", "gpu-1", True),
    ],
)
def test_a_known_text_is_hidden_where_it_stands_alone(known, text, is_hidden):
    names = Pseudonyms()
    names.know(known, "node")
    assert (known not in names.hide(text)) is is_hidden
    assert names.reveal(names.hide(text)) == text
