from normlab.measure.provenance import provenance


def test_a_machine_is_described_even_where_nothing_can_be_found_out(monkeypatch):
    def missing(*arguments, **options):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr("subprocess.run", missing)
    found = provenance()
    assert (found["gpu"], found["driver"]) == ("unknown", "unknown")
    assert found["apex"] == "not installed"
    assert found["numba"][0].isdigit()


def test_gpu_and_driver_are_those_of_the_first_gpu(monkeypatch):
    class Done:
        stdout = "NVIDIA H200, 580.159.04\nNVIDIA H200, 580.159.04\n"

    monkeypatch.setattr("subprocess.run", lambda *arguments, **options: Done)
    found = provenance()
    assert (found["gpu"], found["driver"]) == ("NVIDIA H200", "580.159.04")
