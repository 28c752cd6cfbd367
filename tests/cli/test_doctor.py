"""`normlab doctor`: what it says of this machine, of one that has nothing, and of one where everything is broken."""

import pytest
from typer.testing import CliRunner

from normlab.cli import app
from normlab.studies import doctor


def run():
    return CliRunner().invoke(app, ["doctor"])


def by_name(rows):
    return {row.what: row for row in rows}


def test_here_numba_and_the_simulator_work():
    found = by_name(doctor.examine())
    assert found["Numba"].works
    assert found["Numba"].found[0].isdigit()
    assert by_name(doctor.abilities(list(found.values())))["simulator: compare, course, trace, run, explain"].works
    assert run().exit_code == 0


@pytest.fixture
def bare(monkeypatch):
    """A machine with Python alone."""
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "ask_nvidia_smi", lambda query: None)
    monkeypatch.setattr("normlab.engine.compile.offline.missing_libraries", lambda: ["nvvm"])
    monkeypatch.setattr("normlab.engine.gpu_available", lambda: False)


@pytest.mark.usefixtures("bare")
def test_where_all_is_missing_it_names_what_to_install_on_one_screen():
    done = run()
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    said = {line.split("  ")[0]: line for line in lines}
    assert [name for name, line in said.items() if " yes" in line] == ["Python"]
    assert said["tutorials 1 to 14 in Jupyter"].endswith('pip install normlab, pip install "normlab[tutorials]"')
    assert said["tutorials 15 to 17 in Jupyter"].endswith('"normlab[tutorials]", pip install "normlab[torch]"')
    assert said["PyTorch: normlab.nn, memory, train"].endswith('pip install "normlab[torch]"')
    assert said["PTX and registers without a GPU: explain --compile"].endswith('pip install "normlab[gpu]"')
    assert said["kernels on the GPU"].endswith("NVIDIA's driver, an NVIDIA GPU")


def test_what_is_broken_is_said_and_nothing_is_raised(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("libsomething.so: wrong ELF class\nand more")

    for name in ("find_spec", "version", "ask_nvidia_smi"):
        monkeypatch.setattr(doctor, name, broken)
    monkeypatch.setattr("normlab.engine.gpu_available", broken)
    monkeypatch.setattr("normlab.engine.compile.offline.missing_libraries", broken)
    done = run()
    assert done.exit_code == 0
    assert done.stdout.count("no   broken: libsomething.so: wrong ELF class\n") == 8
    assert "and more" not in done.stdout
    assert "install --force-reinstall normlab" not in done.stdout  # which is on no index
    monkeypatch.setattr(doctor, "requires", lambda name: ["numba>=0.68"])
    assert doctor._how_to_install("Numba") == 'pip install --force-reinstall --no-deps "numba>=0.68"'
    assert doctor._how_to_install("GPU") == "an NVIDIA GPU"


def test_a_version_out_of_range_is_no_good(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "0.61.2")
    monkeypatch.setattr(doctor, "requires", lambda name: ["numba>=0.68"])  # as if installed
    numba = by_name(doctor.examine())["Numba"]
    assert not numba.works
    assert numba.found == "0.61.2, but normlab needs >=0.68"
    assert numba.instead == 'pip install "numba>=0.68"'


def test_a_gpu_that_numba_cannot_use_is_told_from_none(monkeypatch):
    monkeypatch.setattr(doctor, "ask_nvidia_smi", lambda query: "NVIDIA H100, 81559" if "name" in query else "580.1")
    monkeypatch.setattr("normlab.engine.gpu_available", lambda: False)
    found = by_name(doctor.examine())
    assert found["NVIDIA driver"].found == "580.1"
    assert found["GPU"].found == "NVIDIA H100, 81559 MiB, but Numba cannot use it"
    monkeypatch.setattr("normlab.engine.gpu_available", lambda: True)
    assert by_name(doctor.examine())["GPU"].found == "NVIDIA H100, 81559 MiB"


def test_it_does_not_import_pytorch_and_tells_a_build_for_cpus(monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(doctor, "find_spec", lambda name: spec)
    monkeypatch.setattr(doctor, "version", lambda name: "2.14.1")
    assert doctor._torch() == doctor.Finding("PyTorch", True, "2.14.1, for CPUs only")
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    assert doctor._torch().found == "2.14.1"


def test_pytorch_for_cpus_only_trains_but_measures_no_speed_on_a_gpu():
    names = ("NumPy", "Numba", "numba-cuda", "CUDA compiler", "NVIDIA driver", "GPU", "notebook tools")
    found = [doctor.Finding(name, True, "1") for name in names]
    for told, works in (("2.14.1", True), (f"2.14.1{doctor.CPU_ONLY}", False)):
        can = by_name(doctor.abilities([*found, doctor.Finding("PyTorch", True, told)]))
        assert can["PyTorch: normlab.nn, memory, train"].works
        assert can["speed: bench"].works == works
    assert can["speed: bench"].instead == "PyTorch for CUDA, from pytorch.org"
