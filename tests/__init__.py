from tests.support.processor import spare_illegal_instructions

spare_illegal_instructions()
