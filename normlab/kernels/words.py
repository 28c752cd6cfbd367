"""Say numbers in words, for plans that explain themselves."""

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def counted(number: int, noun: str) -> str:
    """Return a number of things, small numbers in words.

    >>> counted(2, "row"), counted(1, "row"), counted(139264, "byte")
    ('two rows', 'one row', '139,264 bytes')
    """
    # up to twelve in words; larger numbers are read faster as digits
    said = NUMBERS[number] if 0 <= number < len(NUMBERS) else f"{number:,}"
    return f"{said} {noun}" if number == 1 else f"{said} {noun}s"
